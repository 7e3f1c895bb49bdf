"""Timed mode: launches take the time they say, processes take turns, and the load shows."""

from __future__ import annotations

import time

import pytest

START = """
context = start()
PTX = b".version 8.0\\n" + b"".join(b".entry k_us%d() { ret; }\\n" % n for n in (100, 1000, 20000, 100000)) + \
    b".entry plain() { ret; }\\n"
module = c_void_p(out("ModuleLoadData", c_void_p, PTX))
def kernel(name): return c_void_p(out("ModuleGetFunction", c_void_p, module, name.encode()))
def launch(function, stream=0, blocks=1): cu.LaunchKernel(function, blocks, 1, 1, 1024, 1, 1, 0, stream, 0, 0)
def event(): return c_void_p(out("EventCreate", c_void_p, 0))
def elapsed(a, b): return out("EventElapsedTime_v2", ctypes.c_float, a, b)
first, last = event(), event()
"""


@pytest.fixture
def timed(timed_cards, program):
    one = program(timed_cards)
    one(START)
    return one


def test_events_show_what_kernels_take(timed):
    timed("cu.EventRecord(first, 0)\nfor _ in range(7): launch(kernel('k_us1000'))\ncu.EventRecord(last, 0)")
    timed("cu.EventSynchronize(last)")
    # Exact work, plus what passes between the first record and the first launch.
    assert 7.0 <= timed("elapsed(first, last)") < 12.0


def test_waiting_waits_and_asking_does_not(timed):
    timed("begin = __import__('time').monotonic()\nlaunch(kernel('k_us100000'))")
    assert timed("code_of('StreamQuery', 0)") == 600
    timed("cu.EventRecord(last, 0)")
    assert timed("code_of('EventQuery', last)") == 600
    timed("cu.StreamSynchronize(0)")
    assert timed("__import__('time').monotonic() - begin") >= 0.1
    assert timed("[code_of('StreamQuery', 0), code_of('EventQuery', last)]") == [0, 0]


def test_a_copy_back_waits_for_the_kernel(timed):
    timed("pointer = alloc(4)\nbegin = __import__('time').monotonic()\nlaunch(kernel('k_us20000'))\nget(pointer, 4)")
    assert timed("__import__('time').monotonic() - begin") >= 0.02


def test_time_by_size(timed, timed_cards):
    timed_cards.control("kernel-wave-ns 1000000")
    # An A100 has 108 multiprocessors of 2048 threads, two blocks of 1024 each.
    for blocks, waves in ((1, 1), (216, 1), (217, 2), (2160, 10)):
        timed(f"cu.EventRecord(first, 0)\nlaunch(kernel('plain'), 0, {blocks})\ncu.EventRecord(last, 0)")
        timed("cu.EventSynchronize(last)")
        assert waves <= timed("elapsed(first, last)") < waves + 5


def test_more_launches_than_the_queue_holds(timed):
    timed("launch(kernel('k_us20000'))\nk = kernel('k_us100')\nfor _ in range(6000): launch(k)\ncu.CtxSynchronize()")
    assert timed("code_of('StreamQuery', 0)") == 0


def test_two_processes_take_turns(timed, timed_cards, program):
    other = program(timed_cards)
    other(START)
    for each in (timed, other):
        each.tell(
            "cu.EventRecord(first, 0)\nk = kernel('k_us1000')\nfor _ in range(300): launch(k)\n"
            "cu.EventRecord(last, 0)\ncu.EventSynchronize(last)"
        )
    for each in (timed, other):
        each.answer()
    took = [each("elapsed(first, last)") for each in (timed, other)]
    assert sum(took) >= 600  # each alone would take 300 ms
    assert max(took) >= 500


def test_load_shows_and_goes(timed, timed_cards, program):
    watcher = program(timed_cards)
    watcher("import pynvml as N\nN.nvmlInit()\nh = N.nvmlDeviceGetHandleByIndex(0)")
    load = "[N.nvmlDeviceGetUtilizationRates(h).gpu, N.nvmlDeviceGetPowerUsage(h)]"
    assert watcher(load) == [0, 60_000]
    timed.tell("k = kernel('k_us20000')\nfor _ in range(50): launch(k)\ncu.CtxSynchronize()")
    seen, shares = [], []
    deadline = time.monotonic() + 20
    while not (seen and max(seen)[0] >= 95) and time.monotonic() < deadline:
        seen.append(watcher(load))
        shares += watcher(
            "[[u.pid, u.smUtil] for u in N.nvmlDeviceGetProcessUtilization(h, 0)]"
            " if N.nvmlDeviceGetUtilizationRates(h).gpu else []"
        )
    timed.answer()
    utilization, power = max(seen)
    assert utilization >= 95
    assert power == 60_000 + 340_000 * utilization // 100
    assert {pid for pid, _ in shares} == {timed.pid}
    while watcher(load) != [0, 60_000]:
        assert time.monotonic() < deadline
    assert watcher("N.nvmlDeviceGetTotalEnergyConsumption(h)") > 0


def test_a_killed_process_frees_the_card_for_others(timed, timed_cards, program):
    other = program(timed_cards)
    other(START)
    other("k = kernel('k_us100000')\nfor _ in range(1000): launch(k)")
    other.kill()
    timed("begin = __import__('time').monotonic()\nlaunch(kernel('k_us1000'))\ncu.CtxSynchronize()")
    assert timed("__import__('time').monotonic() - begin") < 20  # not the 100 s the dead one had queued


def test_host_functions_keep_their_place_between_kernels(timed):
    timed(
        """
import time
times = []
Function = ctypes.CFUNCTYPE(None, c_void_p)
note = Function(lambda _: times.append(time.monotonic()))
begin = time.monotonic()
launch(kernel("k_us20000"))
cu.LaunchHostFunc(0, note, None)
launch(kernel("k_us20000"))
cu.LaunchHostFunc(0, note, None)
cu.StreamSynchronize(0)
"""
    )
    first, second = timed("[t - begin for t in times]")
    assert first >= 0.02
    assert second - first >= 0.02
