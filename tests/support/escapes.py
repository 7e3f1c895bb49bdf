"""Ways past a session's limit, each as a program that somebody could write."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .machine import SessionProgram

GIB = 1 << 30

# Loads a driver library by its path, takes memory, says how that went, and stays.
_TAKE = """
import ctypes, sys, time
cuda = ctypes.CDLL(sys.argv[1])
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
status = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
status = status or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or cuda.cuCtxSetCurrent(context)
status = status or cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[2])))
print(status, sys.argv[2], flush=True)
time.sleep(10000)
"""

_IN_SESSION = """
import os, subprocess, sys
started = {}
def take(argv, env=None, **options):
    "Starts a program that takes memory; its process id here and the driver's status."
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True, **options)
    started[process.pid] = process
    line = process.stdout.readline()
    words = line.split()
    assert len(words) == 2 and words[0].lstrip("-").isdigit(), line + process.stdout.read()
    return process.pid, int(words[0])
def over(pid):
    "The exit status of one that has ended, else None."
    return started[pid].poll()
"""


def tools(home: Path) -> dict[str, str]:
    """Puts the programs into a session's home, owned by its user, and says where they are."""
    status = home.stat()
    take, static = home / "take.py", home / "static_client"
    take.write_text(_TAKE)
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler is needed"
    source = Path(__file__).parent / "static_client.c"
    subprocess.run([compiler, "-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o", static, source], check=True)
    for path in (take, static):
        os.chown(path, status.st_uid, status.st_gid)
        path.chmod(0o700)
    return {"take": str(take), "static": str(static)}


class Attempts:
    """Attempts from inside one session."""

    def __init__(self, program: SessionProgram, home: str) -> None:
        self.program = program
        self.tools = tools(Path(home))
        program(_IN_SESSION)

    def by_library(self, library: str, size: int, env: str = "None", before: str = "[]") -> tuple[int, int]:
        """Take `size` bytes through a driver library; (pid inside, CUDA's status). `env` and `before` (words before
        the command) are Python."""
        argv = f"{before} + [sys.executable, {self.tools['take']!r}, {library!r}, {str(size)!r}]"
        return self._take(f"take({argv}, env={env})")

    def by_socket(self, size: int, before: str = "[]", card: int = 0) -> tuple[int, int]:
        """Take `size` bytes by a static program at the simulated driver's socket."""
        argv = f"{before} + [{self.tools['static']!r}, os.environ['GPUSPAWNER_SIM_SOCKET'], '{card}', {str(size)!r}]"
        return self._take(f"take({argv})")

    def ended(self, pid: int) -> bool:
        """Whether that process is over."""
        return self.program(f"over({pid})") is not None

    def _take(self, source: str) -> tuple[int, int]:
        found: Any = self.program(source)
        return int(found[0]), int(found[1])
