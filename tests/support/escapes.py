"""Ways past a session's limit, each as a program that somebody could write."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from gpuspawner.node.gate import gib

from .common import until
from .machine import Machine, SessionProgram

GIB = 1 << 30
OUT_OF_MEMORY = 2

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

# Holds memory past the limit for less than the grace, then less than the limit, for ever.
_BY_TURNS = f"""
import ctypes, sys, time
cuda, grace = ctypes.CDLL(sys.argv[1]), float(sys.argv[2])
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
while True:
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t({20 * GIB})) == 0
    time.sleep(0.6 * grace)
    assert cuda.cuMemFree_v2(pointer) == 0
    time.sleep(grace)
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

    def by_turns(self, library: str, grace: float) -> int:
        """Be past the limit by turns, each time for less than `grace` seconds; the pid inside."""
        argv = f"[sys.executable, '-c', {_BY_TURNS!r}, {library!r}, '{grace}']"
        self.program(f"process = subprocess.Popen({argv}); started[process.pid] = process")
        return int(self.program("process.pid"))

    def ended(self, pid: int) -> bool:
        """Whether that process is over."""
        return self.program(f"over({pid})") is not None

    def _take(self, source: str) -> tuple[int, int]:
        found: Any = self.program(source)
        return int(found[0]), int(found[1])


class Mallory:
    """A session of an eighth that wants more."""

    def __init__(self, made: Machine, number: int) -> None:
        self.machine = made
        self.user = f"mallory{number}"
        self.session, self.program = made.start(self.user, "1/8")
        self.allowed = self.session["memory_bytes"]
        home = self.program("os.environ['HOME']")
        self.attempts = Attempts(self.program, home)

    def shown(self) -> dict[str, Any]:
        answer = self.machine.api.get(f"/sessions/{self.session['id']}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def codes(self) -> list[str]:
        return [notice["code"] for notice in self.shown()["notices"]]

    def excesses(self) -> list[str]:
        events = self.machine.api.get("/events", params={"session": self.session["id"]}).json()["events"]
        return [event["reason"] for event in reversed(events) if event["kind"] == "excess"]

    def is_ended(self, pid: int) -> None:
        """The process is seen and ended, its memory is back, the honest one lives, and everybody is told."""
        until(lambda: self.attempts.ended(pid), 20, "the end of the process")
        until(lambda: self.shown()["memory_used_bytes"] <= self.allowed, 20, "its memory")
        assert self.program("1 + 1") == 2
        until(lambda: self.codes() == ["process_ended"], 20, "the notices")
        excesses = self.excesses()
        assert f"may use {gib(self.allowed)}" in excesses[0]
        assert "was ended" in excesses[-1]

    def is_held(self, status: int) -> None:
        """Nothing was got."""
        assert status == OUT_OF_MEMORY
        assert self.shown()["memory_used_bytes"] <= self.allowed
        assert self.codes() == []
