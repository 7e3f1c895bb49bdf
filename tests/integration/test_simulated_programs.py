"""Unmodified programs of other people on simulated cards: what they read and do must be right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuspawner.simulation import SimulatedCards

CONTEXT = 64 << 20
GIB = 1 << 30


@pytest.fixture
def cards() -> Iterator[SimulatedCards]:
    with SimulatedCards("1*h100-80gb,1*a100-40gb") as running:
        yield running


def run(cards: SimulatedCards, *argv: str, **env: str) -> str:
    """What a program writes to stdout; it must succeed."""
    done = subprocess.run(
        argv, env={**os.environ, **cards.env(), **env}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def python(cards: SimulatedCards, code: str, **env: str) -> object:
    """The JSON value that Python code prints."""
    return json.loads(run(cards, sys.executable, "-c", code, **env))


HOLD = """
import sys
from cuda.bindings import driver
def check(result):
    assert result[0] == 0, result
    return result[1:] if len(result) > 2 else result[1] if len(result) == 2 else None
check(driver.cuInit(0))
check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(int(sys.argv[1])))))))
check(driver.cuMemAlloc(int(sys.argv[2])))
print("holding", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holders(cards: SimulatedCards) -> Iterator[list[subprocess.Popen[str]]]:
    """Three processes with memory: 1 GiB and 2 GiB on card 0, 3 GiB on card 1."""
    started = []
    try:
        for card, size in ((0, GIB), (0, 2 * GIB), (1, 3 * GIB)):
            argv = [sys.executable, "-c", HOLD, str(card), str(size)]
            env = {**os.environ, **cards.env()}
            started.append(subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for each in started:
            assert each.stdout.readline() == "holding\n"
        yield started
    finally:
        for each in started:
            each.stdin.close()
            each.wait(20)
            each.stdout.close()


def test_gpustat(cards, holders):
    cards.control("set 1 temperature 77")
    shown = json.loads(run(cards, sys.executable, "-m", "gpustat", "--json"))
    first, second = shown["gpus"]
    assert first["name"] == "NVIDIA H100 80GB HBM3 (simulated)"
    assert (first["memory.total"], first["memory.used"]) == (81559, 3 * 1024 + 128)
    assert (second["memory.total"], second["memory.used"]) == (40960, 3 * 1024 + 64)
    assert second["temperature.gpu"] == 77
    assert {p["pid"]: p["gpu_memory_usage"] for p in first["processes"]} == {
        holders[0].pid: 1024 + 64,
        holders[1].pid: 2048 + 64,
    }
    assert [p["pid"] for p in second["processes"]] == [holders[2].pid]


def test_nvitop_shows_them(cards, holders):
    shown = run(cards, sys.executable, "-m", "nvitop", "-1", "--no-unicode")
    assert "(simulated)" in shown
    assert all(str(each.pid) in shown for each in holders)


def test_nvitop_reads_everything(cards, holders):
    code = """
import json
from nvitop import Device
rows = []
for device in Device.all():
    device.oneshot()
    rows.append({
        "name": device.name(), "total": device.memory_total(), "used": device.memory_used(),
        "utilization": device.gpu_utilization(), "power": device.power_usage(), "limit": device.power_limit(),
        "temperature": device.temperature(), "fan": str(device.fan_speed()), "mode": device.compute_mode(),
        "processes": {pid: p.gpu_memory() for pid, p in device.processes().items()},
        "clock": device.max_sm_clock(), "tx": device.pcie_tx_throughput(), "links": device.nvlink_link_count(),
    })
print(json.dumps(rows))
"""
    first, second = python(cards, code)
    assert first == {
        "name": "NVIDIA H100 80GB HBM3 (simulated)",
        "total": 81559 << 20,
        "used": 2 * CONTEXT + 3 * GIB,
        "utilization": 0,
        "power": 70_000,
        "limit": 700_000,
        "temperature": 30,
        "fan": "N/A",
        "mode": "Default",
        "processes": {str(holders[0].pid): CONTEXT + GIB, str(holders[1].pid): CONTEXT + 2 * GIB},
        "clock": 1980,
        "tx": 0,
        "links": 18,
    }
    assert second["processes"] == {str(holders[2].pid): CONTEXT + 3 * GIB}


def test_cuda_bindings_fill_a_card_until_it_refuses(cards):
    code = (
        HOLD.split("check(driver.cuMemAlloc")[0].replace("int(sys.argv[1])", "1")
        + """
import json
held = []
while True:
    error, pointer = driver.cuMemAlloc(1 << 30)
    if error: break
    held.append(pointer)
free, total = check(driver.cuMemGetInfo())
data = bytes(range(256)) * 4
back = bytearray(1024)
check(driver.cuMemcpyHtoD(held[-1], data, 1024))
check(driver.cuMemcpyDtoH(back, held[-1], 1024))
for pointer in held: check(driver.cuMemFree(pointer))
print(json.dumps([error.name, len(held), free, total, back == data, check(driver.cuMemGetInfo())[0]]))
"""
    )
    total = 40 * GIB
    assert python(cards, code) == [
        "CUDA_ERROR_OUT_OF_MEMORY",
        39,
        GIB - CONTEXT,
        total,
        True,
        total - CONTEXT,
    ]


def test_numba_device_arrays(cards):
    code = """
import json
import numpy as np
from numba import cuda
context = cuda.current_context()
before = context.get_memory_info().free
data = np.random.default_rng(1).random((1000, 1000))
stream = cuda.stream()
array, second = cuda.to_device(data), cuda.to_device(data[::-1].copy(), stream=stream)
stream.synchronize()
same = [bool((array.copy_to_host() == data).all()), bool((second.copy_to_host() == data[::-1]).all()),
        bool((array[10:20].copy_to_host() == data[10:20]).all())]
pinned, managed = cuda.pinned_array(100), cuda.managed_array(100, dtype=np.float32)
managed[:] = 3
start, end = cuda.event(), cuda.event()
start.record(); end.record(); end.synchronize()
taken = before - context.get_memory_info().free
name = cuda.get_current_device().name
name = name.decode() if isinstance(name, bytes) else name
print(json.dumps([len(cuda.gpus), name, same, taken, start.elapsed_time(end) >= 0, float(managed.sum())]))
"""
    count, name, same, taken, measured, total = python(cards, code)
    assert (count, same, measured, total) == (2, [True, True, True], True, 300)
    assert name == "NVIDIA H100 80GB HBM3 (simulated)"
    rounded = -(-8_000_000 // 512) * 512
    assert taken == 2 * rounded + 512


def runtime_library() -> Path | None:
    """The CUDA runtime library, where it is installed."""
    found = [
        path for entry in sys.path for path in Path(entry).glob("nvidia/*/lib/libcudart.so.1[23]") if path.is_file()
    ]
    return found[0] if found else None


def test_the_cuda_runtime_is_told_that_there_is_no_card(cards):
    library = runtime_library()
    if library is None:
        pytest.skip("the CUDA runtime library is not installed")
    code = f"""
import ctypes, json
runtime = ctypes.CDLL({str(library)!r})
count = ctypes.c_int(-1)
code = runtime.cudaGetDeviceCount(ctypes.byref(count))
print(json.dumps([code != 0 or count.value == 0]))
"""
    assert python(cards, code) == [True]


def test_command_line(cards, tmp_path):
    argv = [
        sys.executable,
        "-m",
        "gpuspawner.simulation",
        "--cards",
        "3*v100-16gb",
        "--",
        sys.executable,
        "-m",
        "gpustat",
    ]
    shown = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout
    assert shown.count("Tesla V100-SXM2-16GB (simulated)") == 3
    argv = [sys.executable, "-m", "gpuspawner.simulation", "--socket", str(cards.socket), "--control"]
    done = subprocess.run([*argv, "set 0 temperature 50"], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "ok\n"
    done = subprocess.run([*argv, "set 0 temperature hot"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert 'temperature: got "hot"; allowed are 0 to 150 or auto' in done.stderr
