"""The driver's interface: devices, entry points, streams, events, code."""

from __future__ import annotations

import uuid

import pytest

from gpuspawner.card import model_slug
from gpuspawner.simulation import SimulatedCards

NOT_FOUND, NOT_READY, NOT_SUPPORTED, NO_DEVICE, INVALID_HANDLE = 500, 600, 801, 100, 400


def name_of(program, device):
    program(f"name = ctypes.create_string_buffer(100)\ncu.DeviceGetName(name, 100, {device})")
    return program("name.value.decode()")


@pytest.mark.parametrize(
    ("model", "processors", "capability", "bus"),
    [
        ("v100-16gb", 80, (7, 0), 4096),
        ("v100-32gb", 80, (7, 0), 4096),
        ("a100-40gb", 108, (8, 0), 5120),
        ("a100-80gb", 108, (8, 0), 5120),
        ("h100-80gb", 132, (9, 0), 5120),
        ("h200-141gb", 132, (9, 0), 6144),
    ],
)
def test_every_model_is_what_it_says(program, model, processors, capability, bus):
    with SimulatedCards(f"1*{model}") as cards:
        one = program(cards)
        one("context = start()")
        name, memory = name_of(one, 0), one("out('DeviceTotalMem_v2', c_size_t, 0)")
        assert name.endswith(" (simulated)")
        assert model_slug(name, memory) == model
        read = [one(f"out('DeviceGetAttribute', c_int, {number}, 0)") for number in (16, 75, 76, 37)]
        assert read == [processors, *capability, bus]
        one.close()


def test_uuids_stay_and_tell_cards_nodes_and_models_apart():
    def uuids(spec, node=0):
        with SimulatedCards(spec, node=node) as cards, cards.connect() as control:
            return [card["uuid"] for card in control.state()["cards"]]

    first = uuids("2*h100-80gb,1*a100-80gb")
    assert uuids("2*h100-80gb,1*a100-80gb") == first
    others = uuids("2*h100-80gb", node=7) + uuids("2*a100-80gb")
    assert len({*first, *others}) == 7
    for text in (*first, *others):
        assert text.startswith("GPU-51a1ca4d-")
        uuid.UUID(text.removeprefix("GPU-"))


@pytest.mark.parametrize(
    ("visible", "indices"),
    [("0,1", [0, 1]), ("1,0", [1, 0]), ("1", [1]), ("0,-1,1", [0]), ("0, 1", [0, 1]), ("1,9", [1])],
)
def test_visible_devices(program, cards, visible, indices):
    with cards.connect() as control:
        uuids = [card["uuid"] for card in control.state()["cards"]]
    one = program(CUDA_VISIBLE_DEVICES=visible)
    one("cu.Init(0)")
    assert one("out('DeviceGetCount', c_int)") == len(indices)
    got = [
        one(f"value = (ctypes.c_ubyte * 16)()\ncu.DeviceGetUuid_v2(value, {i})") or one("bytes(value)")
        for i in range(len(indices))
    ]
    assert got == [uuids[i].removeprefix("GPU-").replace("-", "") for i in indices]


def test_devices_are_chosen_by_uuid_and_memory_is_taken_from_that_card(program, cards):
    with cards.connect() as control:
        uuids = [card["uuid"] for card in control.state()["cards"]]
    one = program(CUDA_VISIBLE_DEVICES=uuids[1])
    one("context = start()")
    one("alloc(GIB)")
    assert cards.used_bytes(0) == 0
    assert cards.used_bytes(1) == (64 << 20) + (1 << 30)


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles", "0,0", "GPU-51a1ca4d"])
def test_hidden_devices(program, hidden):
    assert program(CUDA_VISIBLE_DEVICES=hidden)("code_of('Init', 0)") == NO_DEVICE


def test_without_a_daemon_there_is_no_device(program):
    one = program(GPUSPAWNER_SIM_SOCKET="/nonexistent/socket")
    assert one("code_of('Init', 0)") == NO_DEVICE
    assert one("code_of('DeviceGetCount', byref(c_int()))") == 3


LOOK_UP = """
def look_up(name, version, flags=0):
    pointer, status = c_void_p(), c_int(-1)
    code = code_of("GetProcAddress_v2", name.encode(), byref(pointer), c_int(version), flags, byref(status))
    found = [n for n in NAMES if ctypes.cast(getattr(cu.library, n), c_void_p).value == pointer.value]
    return [code, status.value, found]
NAMES = ["cuMemAlloc", "cuMemAlloc_v2", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuMemcpyHtoDAsync_v2", "cuEventRecord",
         "cuStreamWaitValue32_v2", "cuGetProcAddress_v2", "cuInit"]
"""


def test_entry_points_are_found_by_version_and_flags(one):
    one(LOOK_UP)
    legacy, per_thread = 1, 2
    assert one("look_up('cuMemAlloc', 12000)") == [0, 0, ["cuMemAlloc_v2"]]
    assert one("look_up('cuMemAlloc', 3020)") == [0, 0, ["cuMemAlloc_v2"]]
    assert one("look_up('cuMemAlloc', 3010)")[:2] == [0, 0]
    assert one("look_up('cuMemAlloc', 3010)[2] != ['cuMemAlloc_v2']")
    assert one("look_up('cuMemAlloc', 1000)") == [NOT_FOUND, 2, []]  # known, but not in so old a version
    assert one("look_up('cuNoSuchThing', 13000)") == [NOT_FOUND, 1, []]
    assert one("look_up('cuCtxCreate', 11040)") == [0, 0, ["cuCtxCreate_v3"]]
    assert one("look_up('cuCtxCreate', 13000)") == [0, 0, ["cuCtxCreate_v4"]]
    assert one("look_up('cuGetProcAddress', 12000)") == [0, 0, ["cuGetProcAddress_v2"]]
    assert one(f"look_up('cuInit', 13000, {legacy})") == [0, 0, ["cuInit"]]
    assert one(f"look_up('cuInit', 13000, {per_thread})") == [0, 0, ["cuInit"]]  # has no form of its own
    assert one(f"look_up('cuMemAlloc', 13000, {legacy | per_thread})[2]") == ["cuMemAlloc_v2"]
    assert one("look_up('cuMemAlloc', 13000, 8)")[0] == 1


def test_every_entry_point_that_is_listed_can_be_called_by_name(one):
    from gpuspawner.simulation.build import HERE

    lines = (HERE / "src" / "cuda" / "entries.inc").read_text().splitlines()
    names = [line.split("(")[1].rstrip(")").split(", ") for line in lines if line.startswith("ENTRY(")]
    assert len(names) > 600
    assert one(f"[n for n in {[n[3] for n in names]!r} if not hasattr(cu.library, n)]") == []
    one(LOOK_UP)
    assert one(f"[n for n in {sorted({n[0] for n in names})!r} if look_up(n, 13050)[0]]") == []


def test_the_cuda_runtime_finds_no_way_in(one):
    # libraries on the CUDA runtime take this one for a machine without a card, and say nothing more
    assert one("code_of('GetExportTable', byref(c_void_p()), bytes(16))") == NO_DEVICE


def test_errors_have_names(one):
    one("text = c_char_p()")
    assert one("cu.GetErrorName(2, byref(text)) or text.value.decode()") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert one("cu.GetErrorString(2, byref(text)) or text.value.decode()") == "out of memory"
    assert one("code_of('GetErrorName', 12345, byref(text))") == 1


def test_contexts_stack_per_thread(one):
    one("second = c_void_p()\ncu.CtxCreate_v4(byref(second), None, 0, 1)")
    assert one("out('CtxGetDevice', c_int)") == 1
    one(
        """
import threading
seen = []
thread = threading.Thread(target=lambda: seen.append(out("CtxGetCurrent", c_void_p)))
thread.start()
thread.join()
"""
    )
    assert one("seen") == [None]
    assert one("out('CtxPopCurrent_v2', c_void_p) == second.value")
    assert one("out('CtxGetDevice', c_int)") == 0
    assert one("out('CtxGetDevice_v2', c_int, second)") == 1


def test_events_measure_and_streams_keep_order(one):
    one(
        """
import threading
stream = c_void_p(out("StreamCreate", c_void_p, 1))
start_event, end_event = c_void_p(out("EventCreate", c_void_p, 0)), c_void_p(out("EventCreate", c_void_p, 0))
gate, order = threading.Event(), []
Function = ctypes.CFUNCTYPE(None, c_void_p)
wait = Function(lambda _: (gate.wait(20), order.append("host")))
note = Function(lambda _: order.append("after"))
device = alloc(4)
put(device, b"old!")
pinned = out("MemHostAlloc", c_void_p, 4096, 0)
ctypes.memmove(pinned, b"new!", 4)
cu.EventRecord(start_event, stream)
cu.LaunchHostFunc(stream, wait, None)
cu.MemcpyHtoDAsync_v2(device, pinned, 4, stream)
cu.EventRecord(end_event, stream)
cu.LaunchHostFunc(stream, note, None)
"""
    )
    assert one("code_of('StreamQuery', stream)") == NOT_READY
    assert one("code_of('EventQuery', end_event)") == NOT_READY
    assert one("code_of('EventElapsedTime_v2', byref(ctypes.c_float()), start_event, end_event)") == NOT_READY
    assert one("get(device, 4).decode()") == "old!"  # the copy waits behind the host function
    assert one("code_of('StreamQuery', 0)") == 0  # another stream is not held up
    one("gate.set()\ncu.StreamSynchronize(stream)")
    assert one("[order, get(device, 4).decode()]") == [["host", "after"], "new!"]
    assert one("code_of('EventQuery', end_event)") == 0
    assert one("out('EventElapsedTime_v2', ctypes.c_float, start_event, end_event)") > 0
    assert one("out('EventElapsedTime_v2', ctypes.c_float, end_event, start_event)") < 0


def test_a_stream_waits_for_anothers_event(one):
    one(
        """
import threading
first, second = (c_void_p(out("StreamCreate", c_void_p, 1)) for _ in range(2))
event = c_void_p(out("EventCreate", c_void_p, 2))
gate, order = threading.Event(), []
Function = ctypes.CFUNCTYPE(None, c_void_p)
wait = Function(lambda _: (gate.wait(20), order.append("first")))
note = Function(lambda _: order.append("second"))
cu.LaunchHostFunc(first, wait, None)
cu.EventRecord(event, first)
cu.StreamWaitEvent(second, event, 0)
cu.LaunchHostFunc(second, note, None)
"""
    )
    assert one("code_of('StreamQuery', second)") == NOT_READY
    one("gate.set()\ncu.CtxSynchronize()")
    assert one("order") == ["first", "second"]
    assert one("code_of('EventElapsedTime_v2', byref(ctypes.c_float()), event, event)") == INVALID_HANDLE  # no timing


def test_stale_handles_are_told(one):
    one("stream = c_void_p(out('StreamCreate', c_void_p, 0))\ncu.StreamDestroy_v2(stream)")
    assert one("code_of('StreamSynchronize', stream)") == INVALID_HANDLE
    one("event = c_void_p(out('EventCreate', c_void_p, 0))\ncu.EventDestroy_v2(event)")
    assert one("code_of('EventRecord', event, 0)") == INVALID_HANDLE


PTX = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry kernel(.param .u64 a) { ret; }\0"


def test_code_is_taken_but_not_run(one):
    one("read, write = os.pipe()\nos.dup2(write, 2)")
    one(f"module = c_void_p(out('ModuleLoadData', c_void_p, {PTX!r}))")
    one("function = c_void_p(out('ModuleGetFunction', c_void_p, module, b'kernel'))")
    assert one("code_of('ModuleGetFunction', byref(c_void_p()), module, b'kern')") == NOT_FOUND
    assert one("code_of('ModuleLoadData', byref(c_void_p()), b'nonsense')") == 200
    launch = "code_of('LaunchKernel', function, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0)"
    assert [one(launch), one(launch)] == [NOT_SUPPORTED, NOT_SUPPORTED]
    assert one("code_of('LaunchKernel', function, 1, 1, 1, 2000, 1, 1, 0, 0, 0, 0)") == 1
    said = one("os.read(read, 10000).decode()")
    assert said.count("\n") == 1
    assert "simulated" in said


def test_occupancy(one):
    one(f"module = c_void_p(out('ModuleLoadData', c_void_p, {PTX!r}))")
    one("function = c_void_p(out('ModuleGetFunction', c_void_p, module, b'kernel'))")
    blocks = "out('OccupancyMaxActiveBlocksPerMultiprocessor', c_int, function, {}, {})"
    cases = ((1024, 0), (32, 0), (256, 100 << 10), (256, 1 << 20))
    assert [one(blocks.format(*case)) for case in cases] == [2, 32, 2, 0]
