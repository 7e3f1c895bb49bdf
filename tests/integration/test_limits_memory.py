"""The shim in front of the simulated driver: never more than the limit, and all of it, by every kind of memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.limits import CUDA, Cards, Outside, Process, session

from gpuspawner.node.limits import abi, launch
from gpuspawner.simulation.control import Control

G, M = 1 << 30, 1 << 20
OUT_OF_MEMORY = 2
INVALID_VALUE = 1


@pytest.fixture
def one(out: Outside, uuids: list[str], context: int) -> Process:
    """A program with a context on the first card and 4 GiB."""
    out.limit(abi.CardLimit(uuids[0], 1, 4 * G, context))
    return out.server(CUDA)


def test_the_context_is_charged_as_the_driver_takes_it(one: Process, made: Cards, context: int) -> None:
    assert context > 0
    assert one.run("info()") == [4 * G - context, 4 * G]
    assert made.used() == context


@pytest.mark.skipif(launch.probe() != "guarded", reason=f"no namespaces here: {launch.probe_reason()}")
@pytest.mark.parametrize("empty_environment", [False, True])
def test_a_session_fills_its_eighth_to_the_byte(
    tmp_path: Path, made: Cards, uuids: list[str], context: int, empty_environment: bool
) -> None:
    eighth = 10 * G + 512
    with session(tmp_path, made.driver()) as ada:
        ada.limit(abi.CardLimit(uuids[0], 1, eighth, context))
        server = ada.server("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0'")
        if empty_environment:
            source = f"{CUDA}\nprint(fill([1 << 30, 1 << 20, 512]), info())"
            got = server.run(
                f"__import__('subprocess').run(['/usr/bin/env', '-i', {sys.executable!r}, '-c', {source!r}],"
                "capture_output=True, text=True, check=True).stdout"
            )
            assert got == f"{eighth - context} [0, {eighth}]\n"
        else:
            server.run(CUDA)
            assert server.run("fill([1 << 30, 1 << 20, 512])") == eighth - context
            assert server.run("info()") == [0, eighth]
            assert server.run("allocate(1)")[0] == OUT_OF_MEMORY
            assert made.used() == eighth
            [row] = ada.usage()
            assert (row.uuid, row.bytes) == (uuids[0], eighth)
            assert row.pid == server.run("os.getpid()")


@pytest.mark.skipif(launch.probe() != "guarded", reason=f"no namespaces here: {launch.probe_reason()}")
def test_variables_of_the_user_change_no_limit(tmp_path: Path, made: Cards, uuids: list[str], context: int) -> None:
    with session(tmp_path, made.driver()) as ada:
        ada.limit(abi.CardLimit(uuids[0], 1, 4 * G, context))
        abi.write_limits(ada.home / "limit", [abi.CardLimit(uuids[0], 8, 80 * G)])
        abi.create_usage(ada.home / "usage")
        for name in ("limit", "usage"):
            (ada.home / name).chmod(0o666)
        server = ada.server(
            f"import os; os.environ['GPUSPAWNER_LIMITS'] = {str(ada.home / 'limit')!r}\n"
            f"os.environ['GPUSPAWNER_USAGE'] = {str(ada.home / 'usage')!r}\n" + CUDA
        )
        assert server.run("info()") == [4 * G - context, 4 * G]


def test_a_resize_is_in_force_in_the_running_program(
    one: Process, out: Outside, uuids: list[str], context: int
) -> None:
    assert one.run("fill([1 << 30, 1 << 20])") == 4 * G - context
    assert one.run("allocate(1)")[0] == OUT_OF_MEMORY
    out.limit(abi.CardLimit(uuids[0], 2, 8 * G, context))
    assert one.run("info()") == [4 * G, 8 * G]
    error, pointer = one.run(f"allocate({4 * G})")
    assert error == 0
    out.limit(abi.CardLimit(uuids[0], 1, 2 * G, context))  # forced, below what is used
    assert one.run("info()") == [0, 2 * G]
    assert one.run("allocate(1)")[0] == OUT_OF_MEMORY
    assert one.run(f"release({pointer})") == 0
    assert one.run("info()") == [0, 2 * G]
    out.limit(abi.CardLimit(uuids[0], 8, 80 * G, context))
    assert one.run("info()") == [76 * G, 80 * G]


KINDS = {
    "plain": ("p = cu.cuMemAlloc(1000001)", "cu.cuMemFree(p[1])"),
    "pitched": ("p = cu.cuMemAllocPitch(1000, 77, 4)", "cu.cuMemFree(p[1])"),
    "managed": ("p = cu.cuMemAllocManaged(1000001, 1)", "cu.cuMemFree(p[1])"),
    "pool": ("p = cu.cuMemAllocAsync(3000001, 0)", "cu.cuMemFreeAsync(p[1], 0); cu.cuStreamSynchronize(0)"),
    "pool, plain free": ("p = cu.cuMemAllocAsync(3000001, 0)", "cu.cuMemFree(p[1]); cu.cuCtxSynchronize()"),
    "per-thread stream": (
        "p = cu.cuMemAllocAsync(3000001, cu.CUstream(2))",
        "cu.cuMemFreeAsync(p[1], cu.CUstream(2)); cu.cuStreamSynchronize(cu.CUstream(2))",
    ),
    "own pool": (
        "q = cu.CUmemPoolProps(); q.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED\n"
        "q.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE\n"
        "o = cu.cuMemPoolCreate(q)[1]\n"
        "p = cu.cuMemAllocFromPoolAsync(5000001, o, 0)",
        "cu.cuMemPoolDestroy(o); cu.cuMemFreeAsync(p[1], 0); cu.cuStreamSynchronize(0)",
    ),
    "physical": (
        "a = cu.CUmemAllocationProp(); a.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED\n"
        "a.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE\n"
        "p = cu.cuMemCreate(6 << 20, a, 0)",
        "cu.cuMemRelease(p[1])",
    ),
    "array": (
        "d = cu.CUDA_ARRAY_DESCRIPTOR(); d.Width = 1001; d.Height = 333; d.NumChannels = 4\n"
        "d.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT\n"
        "p = cu.cuArrayCreate(d)",
        "cu.cuArrayDestroy(p[1])",
    ),
    "array, three dimensions": (
        "d = cu.CUDA_ARRAY3D_DESCRIPTOR(); d.Width = 101; d.Height = 33; d.Depth = 7; d.NumChannels = 1\n"
        "d.Format = cu.CUarray_format.CU_AD_FORMAT_HALF\n"
        "p = cu.cuArray3DCreate(d)",
        "cu.cuArrayDestroy(p[1])",
    ),
    "mipmap": (
        "d = cu.CUDA_ARRAY3D_DESCRIPTOR(); d.Width = 1000; d.Height = 300; d.NumChannels = 4\n"
        "d.Format = cu.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8\n"
        "p = cu.cuMipmappedArrayCreate(d, 20)",
        "cu.cuMipmappedArrayDestroy(p[1])",
    ),
    "context": ("p = cu.cuCtxCreate(None, 0, 0)", "cu.cuCtxDestroy(p[1])"),
    "context with memory": ("p = cu.cuCtxCreate(None, 0, 0); cu.cuMemAlloc(1 << 20)", "cu.cuCtxDestroy(p[1])"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_counted_as_the_driver_counts_it(kind: str, one: Process, made: Cards) -> None:
    take, give = KINDS[kind]
    before = made.used()
    one.run(take)
    assert one.run("int(p[0])") == 0
    assert made.used() > before
    free, total = one.run("info()")
    assert total - free == made.used()
    one.run(give)
    free, total = one.run("info()")
    assert total - free == made.used() == before


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "context" not in kind])
def test_every_kind_is_refused_when_there_is_no_room(
    kind: str, one: Process, out: Outside, made: Cards, uuids: list[str], context: int
) -> None:
    out.limit(abi.CardLimit(uuids[0], 1, context + 511, context))
    one.run(KINDS[kind][0])
    assert one.run("int(p[0])") == OUT_OF_MEMORY
    assert made.used() == context
    assert one.run("info()") == [511, context + 511]


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_driver_itself_refuses_is_not_charged(kind: str, one: Process, made: Cards) -> None:
    """There is room under the limit, and the driver fails after it was reserved: all of it is given back."""
    before, had = made.used(), one.run("info()")
    with Control(made.socket) as control:
        control.command("refuse", 0, 1 << 40)
        try:
            one.run(KINDS[kind][0])
            assert one.run("int(p[0])") == OUT_OF_MEMORY
        finally:
            control.command("refuse", 0, 0)
    assert one.run("info()") == had
    assert made.used() == before
    one.run(KINDS[kind][0])
    assert one.run("int(p[0])") == 0
    assert made.used() > before


def test_host_memory_is_not_charged(one: Process, made: Cards, context: int) -> None:
    one.run("h = cu.cuMemAllocHost(1 << 20); g = cu.cuMemHostAlloc(1 << 20, 0)")
    assert one.run("[int(h[0]), int(g[0])]") == [0, 0]
    assert one.run("info()") == [4 * G - context, 4 * G]


def test_physical_memory_is_held_by_its_handles_and_its_mappings(one: Process, made: Cards, context: int) -> None:
    one.run(KINDS["physical"][0])
    one.run(
        "va = cu.cuMemAddressReserve(12 << 20, 0, 0, 0)[1]\n"
        "assert int(cu.cuMemMap(va, 6 << 20, 0, p[1], 0)[0]) == 0\n"
        "assert int(cu.cuMemMap(int(va) + (6 << 20), 6 << 20, 0, p[1], 0)[0]) == 0\n"
        "assert int(cu.cuMemRelease(p[1])[0]) == 0"
    )
    held = context + 6 * M
    assert made.used() == held
    assert one.run("info()")[0] == 4 * G - held
    one.run("again = cu.cuMemRetainAllocationHandle(va)\nassert int(again[0]) == 0")
    one.run("assert int(cu.cuMemUnmap(va, 12 << 20)[0]) == 0")
    assert made.used() == held
    assert one.run("info()")[0] == 4 * G - held
    one.run("assert int(cu.cuMemRelease(again[1])[0]) == 0")
    assert made.used() == context
    assert one.run("info()")[0] == 4 * G - context


def test_a_pool_that_keeps_memory_pays_for_it_until_it_is_needed_elsewhere(
    one: Process, made: Cards, context: int
) -> None:
    one.run(
        "pool = cu.cuDeviceGetDefaultMemPool(0)[1]\n"
        "key = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD\n"
        "assert int(cu.cuMemPoolSetAttribute(pool, key, cu.cuuint64_t(1 << 40))[0]) == 0\n"
        "p = cu.cuMemAllocAsync(1 << 30, 0)\n"
        "cu.cuMemFreeAsync(p[1], 0); cu.cuStreamSynchronize(0)"
    )
    assert made.used() == context + G
    assert one.run("info()")[0] == 3 * G - context
    assert one.run(f"allocate({4 * G - context - 512})")[0] == 0  # needs what the pool keeps
    assert made.used() == 4 * G - 512
    assert one.run("info()")[0] == 512


def test_small_pieces_use_up_what_a_pool_has_reserved(one: Process, made: Cards, context: int) -> None:
    assert one.run(f"allocate({4 * G - context - 2 * M})")[0] == 0
    taken = "[int(cu.cuMemAllocAsync(512 << 10, 0)[0]) for _ in range(5)]"
    assert one.run(taken) == [0, 0, 0, 0, OUT_OF_MEMORY]
    assert made.used() == 4 * G
    assert one.run("info()")[0] == 0


@pytest.mark.parametrize(
    "call",
    [
        "cu.cuMemAlloc(2**64 - 1)",
        "cu.cuMemAlloc(2**63)",
        "cu.cuMemAllocManaged(2**64 - 5, 1)",
        "cu.cuMemAllocPitch(2**40, 2**40, 4)",
        "cu.cuMemAllocPitch(2**64 - 1, 1, 4)",
        "cu.cuMemAllocAsync(2**64 - 1, 0)",
        "cu.cuMemAllocAsync(2**63, 0)",
    ],
)
def test_sizes_that_wrap_around_are_refused(call: str, one: Process, made: Cards, context: int) -> None:
    assert one.run(f"int({call}[0])") == OUT_OF_MEMORY
    assert made.used() == context
    assert one.run("info()")[0] == 4 * G - context


def test_errors_of_the_driver_come_through_and_nothing_stays_charged(one: Process, context: int) -> None:
    assert one.run("int(cu.cuMemFree(12345)[0])") == INVALID_VALUE
    assert one.run("int(cu.cuMemFreeAsync(12345, 0)[0])") == INVALID_VALUE
    assert one.run("int(cu.cuMemAlloc(0)[0])") == INVALID_VALUE
    assert one.run("int(cu.cuMemAllocManaged(512, 77)[0])") == INVALID_VALUE
    assert one.run("int(cu.cuMemAllocPitch(100, 100, 5)[0])") == INVALID_VALUE
    assert one.run("int(cu.cuMemUnmap(1 << 21, 1 << 21)[0])") == INVALID_VALUE
    assert one.run("int(cu.cuDevicePrimaryCtxRetain(7)[0])") == 101
    error, pointer = one.run("allocate(512)")
    assert error == 0
    assert one.run(f"[release({pointer}), release({pointer})]") == [0, INVALID_VALUE]
    assert one.run("info()")[0] == 4 * G - context


def test_the_primary_context_is_charged_once_and_takes_its_memory_along(
    one: Process, made: Cards, context: int
) -> None:
    one.run("cu.cuDevicePrimaryCtxRetain(0)")
    assert one.run("info()")[0] == 4 * G - context
    assert one.run("allocate(1 << 20)")[0] == 0
    one.run("cu.cuDevicePrimaryCtxRelease(0)")
    assert made.used() == context + M
    one.run("cu.cuDevicePrimaryCtxRelease(0)")
    assert made.used() == 0
    one.run("error, context = cu.cuDevicePrimaryCtxRetain(0); cu.cuCtxSetCurrent(context)")
    assert one.run("info()")[0] == 4 * G - context


def test_before_any_context_the_driver_answers(out: Outside, uuids: list[str]) -> None:
    out.limit(abi.CardLimit(uuids[0], 1, 4 * G))
    bare = out.server("from cuda.bindings import driver as cu")
    assert bare.run("int(cu.cuMemGetInfo()[0])") == 3  # not initialised
    assert bare.run("int(cu.cuInit(0)[0])") == 0
    assert bare.run("int(cu.cuMemGetInfo()[0])") == 201  # no context
    assert bare.run("int(cu.cuMemAlloc(512)[0])") == 201


def test_limits_follow_the_uuid_however_cards_are_numbered(
    out: Outside, uuids: list[str], made: Cards, context: int
) -> None:
    out.limit(abi.CardLimit(uuids[0], 8, 4 * G, context), abi.CardLimit(uuids[1], 8, 8 * G, context))
    total = "[int(cu.cuDeviceTotalMem(i)[1]) for i in range(int(cu.cuDeviceGetCount()[1]))]"
    first = "from cuda.bindings import driver as cu; cu.cuInit(0)"
    for visible, expected in (
        ("0,1", [4 * G, 8 * G]),
        ("1,0", [8 * G, 4 * G]),
        ("1", [8 * G]),
        (f"{uuids[1]},{uuids[0]}", [8 * G, 4 * G]),
    ):
        assert out.server(first, CUDA_VISIBLE_DEVICES=visible).run(total) == expected
    second = out.server(CUDA, CUDA_VISIBLE_DEVICES="1,0")
    assert second.run("allocate(1 << 30)")[0] == 0
    assert (made.used(0), made.used(1)) == (0, context + G)
    assert [(row.uuid, row.bytes) for row in out.usage()] == [(uuids[1], context + G)]


def test_a_card_without_a_limit_has_no_memory(out: Outside, uuids: list[str]) -> None:
    out.limit(abi.CardLimit(uuids[1], 8, 4 * G))
    bare = out.server("from cuda.bindings import driver as cu; cu.cuInit(0)")
    assert bare.run("int(cu.cuDevicePrimaryCtxRetain(0)[0])") == OUT_OF_MEMORY
    assert bare.run("int(cu.cuCtxCreate(None, 0, 0)[0])") == OUT_OF_MEMORY
    assert bare.run("int(cu.cuDeviceTotalMem(0)[1])") == 0
    assert bare.run("int(cu.cuDevicePrimaryCtxRetain(1)[0])") == 0
    out.limit(abi.CardLimit(uuids[0], 8, 4 * G), abi.CardLimit(uuids[1], 8, 4 * G))  # and later it has
    assert bare.run("int(cu.cuDevicePrimaryCtxRetain(0)[0])") == 0


@pytest.mark.parametrize(
    "damage", ["missing", "empty", "cut", "torn", "other", "version", "no usage", "usage cut", "usage version"]
)
def test_a_bad_file_means_no_memory_and_one_clear_line(damage: str, out: Outside, uuids: list[str]) -> None:
    out.limit(abi.CardLimit(uuids[0], 1, 4 * G))
    content = bytearray(out.limits.read_bytes())
    what = f"limit file {out.limits}: "
    match damage:
        case "missing":
            out.limits.unlink()
            what += "No such file"
        case "empty" | "cut":
            os.truncate(out.limits, 0 if damage == "empty" else 4095)
            what += "not a file of 4096 bytes"
        case "torn":
            content[2048 + 32 + 24] ^= 1
            out.limits.write_bytes(content)
            what += "torn or damaged"
        case "other":
            content[0] ^= 1
            out.limits.write_bytes(content)
            what += "not such a file"
        case "version":
            content[8] = 1
            out.limits.write_bytes(content)
            what += f"of version 1, and this library is for {abi.VERSION}"
        case "no usage":
            out.usage_file.unlink()
            what = f"usage file {out.usage_file}: No such file"
        case "usage cut":
            os.truncate(out.usage_file, 1000)
            what = f"usage file {out.usage_file}: not a file of 471040 bytes"
        case "usage version":
            with out.usage_file.open("r+b") as file:
                file.seek(8)
                file.write(b"\1")
            what = f"usage file {out.usage_file}: of version 1, and this library is for {abi.VERSION}"
    bare = out.server("from cuda.bindings import driver as cu; cu.cuInit(0)")
    for _ in range(3):
        assert bare.run("int(cu.cuDevicePrimaryCtxRetain(0)[0])") == OUT_OF_MEMORY
    lines = bare.errors().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"gpuspawner: no card may be used: {what}")


def test_damage_while_it_runs_means_no_more_memory_until_it_is_mended(
    one: Process, out: Outside, uuids: list[str], context: int
) -> None:
    good = out.limits.read_bytes()
    content = bytearray(good)
    content[16] ^= 3  # another generation, whose copy was never written
    with out.limits.open("r+b") as file:
        file.write(content)
    assert one.run("info()") == [0, 0]
    assert one.run("allocate(512)")[0] == OUT_OF_MEMORY
    with out.limits.open("r+b") as file:
        file.write(good)
    assert one.run("info()") == [4 * G - context, 4 * G]
    assert one.run("allocate(512)")[0] == 0
    assert len(one.errors().splitlines()) == 1


def test_random_limit_files_never_crash_a_program(out: Outside, uuids: list[str]) -> None:
    source = (
        "import ctypes, os, random, sys\n"
        "r = random.Random(3)\n"
        "path = os.environ['GPUSPAWNER_LIMITS']\n"
        "good = open(path, 'rb').read()\n"
        "lib = ctypes.CDLL('libcuda.so.1'); lib.cuInit(0)\n"
        "n = ctypes.c_size_t()\n"
        "seen = set()\n"
        "for i in range(300):\n"
        "    b = bytearray(good)\n"
        "    for _ in range(r.choice([1, 5, 500])): b[r.randrange(16, 4096)] = r.randrange(256)\n"
        "    with open(path, 'r+b') as f: f.write(b)\n"
        "    assert lib.cuDeviceTotalMem_v2(ctypes.byref(n), 0) == 0\n"
        "    seen.add(n.value)\n"
        "with open(path, 'r+b') as f: f.write(good)\n"
        "lib.cuDeviceTotalMem_v2(ctypes.byref(n), 0)\n"
        "seen_last = n.value"
    )
    out.limit(abi.CardLimit(uuids[0], 1, 4 * G))
    found = out.server(source)
    assert set(found.run("sorted(seen)")) <= {0, 4 * G}
    assert found.run("seen_last") == 4 * G


def test_cu_get_proc_address_gives_the_shim_and_always_the_same(out: Outside, uuids: list[str]) -> None:
    out.limit(abi.CardLimit(uuids[0], 1, 4 * G))
    bare = out.server(
        "import ctypes\n"
        "lib = ctypes.CDLL('libcuda.so.1')\n"
        "def symbol(name): return ctypes.cast(getattr(lib, name), ctypes.c_void_p).value\n"
        "def look(name, version, flags, form='cuGetProcAddress_v2'):\n"
        "    found, status = ctypes.c_void_p(), ctypes.c_int()\n"
        "    arguments = [name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags)]\n"
        "    if form.endswith('_v2'): arguments.append(ctypes.byref(status))\n"
        "    return found.value if getattr(lib, form)(*arguments) == 0 else None"
    )
    for name, version, flags, symbol in (
        ("cuMemAlloc", 12000, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemFree", 13000, 0, "cuMemFree_v2"),
        ("cuMemGetInfo", 12000, 1, "cuMemGetInfo_v2"),
        ("cuMemAllocAsync", 12000, 0, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 12000, 1, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 12000, 2, "cuMemAllocAsync_ptsz"),
        ("cuMemFreeAsync", 12000, 2, "cuMemFreeAsync_ptsz"),
        ("cuStreamSynchronize", 6000, 2, "cuStreamSynchronize"),
        ("cuCtxCreate", 11030, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuLaunchKernel", 12000, 0, "cuLaunchKernel"),  # the driver's own
    ):
        for form in ("cuGetProcAddress", "cuGetProcAddress_v2"):
            found = bare.run(f"[look({name!r}, {version}, {flags}, {form!r}) for _ in range(3)]")
            assert set(found) == {bare.run(f"symbol({symbol!r})")}, (name, version, flags)
    assert bare.run("look('cuMemAllocAsync', 11010, 0)") is None
    assert bare.run("look('cuNoSuchThing', 13000, 0)") is None


def test_threads_of_one_process_share_its_account(one: Process, made: Cards, context: int) -> None:
    one.run(
        "import threading, random\n"
        "def work(seed):\n"
        "    r = random.Random(seed); cu.cuCtxSetCurrent(context); held = []\n"
        "    for _ in range(1500):\n"
        "        if len(held) > 50 or (held and r.random() < 0.4):\n"
        "            assert release(held.pop(r.randrange(len(held)))) == 0\n"
        "        error, p = allocate(r.randrange(1, 1 << 20)); assert error == 0; held.append(p)\n"
        "    for p in held: assert release(p) == 0\n"
        "threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()"
    )
    assert one.run("info()")[0] == 4 * G - context
    assert made.used() == context


def test_many_live_allocations_are_all_found_again(one: Process, made: Cards, context: int) -> None:
    one.run("pointers = [allocate(512)[1] for _ in range(20000)]")
    assert one.run("info()")[0] == 4 * G - context - 20000 * 512
    assert one.run("sum(release(p) for p in pointers)") == 0
    assert one.run("info()")[0] == 4 * G - context


def test_asking_for_free_memory_makes_no_system_call(
    out: Outside, tmp_path: Path, made: Cards, uuids: list[str], context: int
) -> None:
    """In strict seccomp mode any other call than read, write and exit ends the process."""
    source = tmp_path / "strict.c"
    source.write_text(
        """
        #include <linux/seccomp.h>
        #include <stddef.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
        int cuMemAlloc_v2(unsigned long long *, size_t), cuMemGetInfo_v2(size_t *, size_t *);
        int main(void) {
            void *context; unsigned long long p; size_t left, all;
            if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
                cuMemAlloc_v2(&p, 512) || cuMemGetInfo_v2(&left, &all)) return 2;
            if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) return 3;
            int bad = 0;
            for (int i = 0; i < 100000; i++) bad |= cuMemGetInfo_v2(&left, &all) || all != 4ull << 30;
            syscall(SYS_exit, bad ? 4 : 0);
        }
        """
    )
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler
    subprocess.run([compiler, "-o", tmp_path / "strict", source, made.driver().cuda], check=True)
    out.limit(abi.CardLimit(uuids[0], 1, 4 * G, context))
    assert subprocess.run([tmp_path / "strict"], env=out.environment, check=False).returncode == 0
