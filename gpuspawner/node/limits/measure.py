"""What the driver takes for one context on each card, so that the shim can charge it.

Programs ask for no such memory, and inside a session nobody can tell whose is whose. The node can: it makes a context
in a process of its own and reads what the driver shows for that process. Run as a module it does so and prints JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import uuid as uuids
from collections.abc import Collection

from .build import DriverFiles

_TIMEOUT_S = 60
_MOST_PROCESSES = 4096


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def context_bytes(driver: DriverFiles, only: Collection[str] = ()) -> dict[str, int]:
    """Bytes that one context takes, by card uuid (of those in `only`, or of all); cards on which none could be made are
    left out.

    Raises `OSError` or `subprocess.SubprocessError` if the driver cannot be tried at all.
    """
    if driver.cuda is None or driver.nvml is None:
        return {}
    command = [sys.executable, "-m", __spec__.name, str(driver.cuda), str(driver.nvml), *only]
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | driver.env
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    found = json.loads(done.stdout)
    return {str(uuid): int(size) for uuid, size in found.items()}


def _own_bytes(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> int | None:
    """What NVML shows for this process on the card; None if it does not show it."""
    for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
        function = getattr(nvml, name, None)
        if function is None:
            continue
        rows = (_Process * _MOST_PROCESSES)()
        count = ctypes.c_uint(_MOST_PROCESSES)
        if function(handle, ctypes.byref(count), rows) == 0:
            for row in rows[: count.value]:
                if row.pid == os.getpid() and 0 < row.used < 1 << 62:
                    return int(row.used)
    return None


def _card_used(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> int | None:
    memory = _Memory()
    return int(memory.used) if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0 else None


def _measure(cuda: ctypes.CDLL, nvml: ctypes.CDLL, device: int, only: Collection[str]) -> tuple[str, int] | None:
    raw = (ctypes.c_uint8 * 16)()
    if cuda.cuDeviceGetUuid(raw, device) != 0:
        return None
    uuid = f"GPU-{uuids.UUID(bytes=bytes(raw))}"
    if only and uuid not in only:
        return None
    handle, context = ctypes.c_void_p(), ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != 0:
        return None
    before = _card_used(nvml, handle)
    if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) != 0:
        return None
    after = _card_used(nvml, handle)
    size = _own_bytes(nvml, handle)
    if size is None and before is not None and after is not None:
        size = after - before  # another process may have moved meanwhile; better than nothing
    cuda.cuDevicePrimaryCtxRelease_v2(device)
    return (uuid, size) if size is not None and size > 0 else None


def _main(cuda_path: str, nvml_path: str, *only: str) -> int:
    cuda, nvml = ctypes.CDLL(cuda_path), ctypes.CDLL(nvml_path)
    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or nvml.nvmlInit_v2() != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        print("{}")
        return 0
    found = [_measure(cuda, nvml, device, only) for device in range(count.value)]
    print(json.dumps(dict(each for each in found if each is not None)))
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
