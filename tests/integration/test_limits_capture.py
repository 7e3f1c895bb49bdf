"""Launches beside and inside a capture of a stream: nothing that a real driver forbids then is called.

Simulated cards have no capture, so a small driver of our own counts what a real one would refuse.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

from gpuspawner.node.limits import abi, build

UUID = "GPU-63617074-7572-6564-7269-766572303030"

DRIVER = r"""
#include <stdint.h>
#include <string.h>
#include <stddef.h>
#define API __attribute__((visibility("default"))) int
static void *capturing;       /* the stream */
static _Thread_local int mode; /* 0: global, 2: relaxed */
static uint64_t events;
static int forbidden, records, launches, done;
static int unsafe(void) { return capturing && mode != 2 ? (forbidden++, 900) : 0; }
API cuDeviceGetUuid_v2(char *uuid, int device) { memcpy(uuid, "capturedriver000", 16); return device; }
API cuCtxGetDevice(int *device) { return *device = 0; }
API cuCtxGetCurrent(void **context) { return *context = &events, 0; }
API cuStreamGetCtx(void *stream, void **context) { (void)stream; return *context = &events, 0; }
API cuStreamBeginCapture_v2(void *stream, int how) { (void)how; return capturing = stream, 0; }
API cuStreamEndCapture(void *stream, void **graph) { (void)stream; *graph = 0; return capturing = 0, 0; }
API cuStreamIsCapturing(void *stream, int *status) { return *status = capturing && stream == capturing, 0; }
API cuThreadExchangeStreamCaptureMode(int *new) { int old = mode; mode = *new; *new = old; return 0; }
API cuEventCreate(void **event, unsigned flags) { *event = (void *)++events; return (int)flags; }
API cuEventDestroy_v2(void *event) { (void)event; return 0; }
API cuEventRecord(void *event, void *stream)
{
    (void)event;
    records++;
    if (capturing && ((uintptr_t)stream <= 2 || stream == capturing))
        forbidden++;
    return 0;
}
API cuEventQuery(void *event) { (void)event; return unsafe() ? 900 : done ? 0 : 600; }
API cuEventElapsedTime_v2(float *ms, void *from, void *to) { (void)from, (void)to; *ms = 5; return unsafe(); }
API cuStreamQuery(void *stream) { (void)stream; return unsafe(); }
API cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **p, void **e)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)p, (void)e;
    done = 1;
    return launches++, 0;
}
API counted(int *out) { out[0] = forbidden, out[1] = records, out[2] = launches; return 0; }
"""

PROGRAM = """
import ctypes, json, sys
shim, driver = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
one, other, graph = ctypes.c_void_p(4096), ctypes.c_void_p(8192), ctypes.c_void_p()
def launch(stream, kernel=16):
    return shim.cuLaunchKernel(ctypes.c_void_p(kernel), 1, 1, 1, 1, 1, 1, 0, stream, None, None)
def counted():
    out = (ctypes.c_int * 3)()
    driver.counted(out)
    return list(out)
def paid():
    with open(sys.argv[3], "rb") as usage:
        usage.seek(274432)
        return int.from_bytes(usage.read(8), sys.byteorder)
found = {}
for _ in range(3):
    launch(other)
found["before"] = counted()
assert shim.cuStreamBeginCapture_v2(one, 0) == 0
spent = paid()
for kernel in range(16, 116):
    launch(one, kernel)
found["inside"] = counted()
found["charged"] = paid() - spent
for _ in range(5):
    launch(other)
for kernel in (None, 1, 2):
    launch(kernel, 4711)
found["beside"] = counted()
assert shim.cuStreamEndCapture(one, ctypes.byref(graph)) == 0
launch(other)
found["after"] = counted()
print(json.dumps(found))
"""


def test_nothing_forbidden_is_called_and_what_is_captured_costs_nothing(tmp_path: Path) -> None:
    driver = tmp_path / "libcuda.so.1"
    (tmp_path / "driver.c").write_text(DRIVER)
    flags = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["cc", *flags, "-o", driver, tmp_path / "driver.c"], check=True)
    ctypes.CDLL(str(driver))  # it loads
    shim = build.host_flavour(build.DriverFiles(driver, driver), tmp_path / "shim")
    limits, usage = tmp_path / "limit", tmp_path / "usage"
    abi.write_limits(limits, [abi.CardLimit(UUID, 4, 1 << 30)])
    abi.create_usage(usage)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, shim / "libcuda.so.1", driver, usage],
        env=os.environ | {"GPUSPAWNER_LIMITS": str(limits), "GPUSPAWNER_USAGE": str(usage)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["before"][1] >= 4  # launches of 5 ms are timed, by two marks each
    assert found["inside"][1] == found["before"][1]  # no marks in what is captured
    assert found["charged"] == 0
    assert found["beside"][1] > found["inside"][1]  # and the others are timed as ever
    assert found["after"][0] == 0
    assert found["after"][2] == 3 + 100 + 5 + 3 + 1  # every launch reached the driver
    assert done.stderr == ""
