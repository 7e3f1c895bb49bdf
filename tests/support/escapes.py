"""Ways past a session's limit, each as a program that somebody could write."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpuspawner.node.gate import gib

from .common import until
from .machine import Machine, SessionProgram

GIB = 1 << 30
OUT_OF_MEMORY = 2

# Loads a driver library by its path, takes memory, says how that went, and stays.
TAKE = """
import ctypes, sys, time
cuda = ctypes.CDLL(sys.argv[1])
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
status = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
status = status or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or cuda.cuCtxSetCurrent(context)
status = status or cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[2])))
print(status, sys.argv[2], flush=True)
time.sleep(10000)
"""

# Namespaces of one's own in a user namespace of one's own, which needs no privileges and nothing mapped.
WITHIN = """
import ctypes, os, sys
MOUNTS, PIDS = 0x00020000, 0x20000000
libc = ctypes.CDLL(None, use_errno=True)
def within(kind):
    assert libc.unshare(0x10000000 | kind) == 0, os.strerror(ctypes.get_errno())
def lay(mine, over):
    assert libc.mount(mine.encode(), over.encode(), None, 0x1000, None) == 0, os.strerror(ctypes.get_errno())
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

# Runs the service as on a machine that allows no namespaces. What follows as its arguments is unused.
_NO_NAMESPACES = """
import runpy
from gpuspawner.node.limits import launch
launch._probe = lambda: ("advisory", "for a test")
runpy.run_module("gpuspawner.service", run_name="__main__", alter_sys=True)
"""
ADVISORY = (sys.executable, "-c", _NO_NAMESPACES)

_IN_SESSION = """
import os, socket, struct, subprocess, sys
started = {}
def take(argv, env=None, **options):
    "Starts a program that takes memory; its process id here and the driver's status."
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True, **options)
    started[process.pid] = process
    line = process.stdout.readline()
    words = line.split()
    assert len(words) == 2 and words[0].lstrip("-").isdigit(), line + process.stdout.read()
    return process.pid, int(words[0])
def opened(size):
    "A connection to the simulated driver that holds `size` bytes of card 0, without any library."
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    raw.connect(os.environ["GPUSPAWNER_SIM_SOCKET"])
    for op, amount, value in ((1, 0, 2), (2, 0, 0), (4, size, 0)):
        raw.send(struct.pack("=4I2Q", 0x4D495347, op, 0, 0, amount, value))
        assert struct.unpack("=IiQ", raw.recv(64)[:16])[1] == 0
    return raw
def handed_on(size):
    "Memory is taken on a connection, which a child inherits before its opener ends; the child's process id."
    read, write = os.pipe()
    if os.fork() == 0:
        kept = opened(size)
        child = os.fork()
        if child:
            os.write(write, str(child).encode())
            os._exit(0)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.execv(sys.executable, [sys.executable, "-c", "import signal; signal.pause()"])
    os.wait()
    return int(os.read(read, 100))
def over(pid):
    "The exit status of one that has ended, else None."
    return started[pid].poll()
"""


def tools(home: Path) -> dict[str, str]:
    """Puts the programs into a session's home, owned by its user, and says where they are."""
    status = home.stat()
    take, static = home / "take.py", home / "static_client"
    take.write_text(TAKE)
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

    def handed_on(self, size: int) -> int:
        """Take `size` bytes on a connection that a child inherits before its opener ends; the child's pid."""
        return int(self.program(f"handed_on({size})"))

    def many(self, count: int, size: int) -> list[int]:
        """Take `size` bytes in each of `count` static programs; their pids inside."""
        return [self.by_socket(size)[0] for _ in range(count)]

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

    def is_ended_on_a_card_that_it_does_not_hold(self) -> None:
        """Memory of the other card is seen, and its process ended."""
        other = 1 - self.session["cards"][0]["index"]
        pid, status = self.attempts.by_socket(4 * GIB, card=other)
        assert status == 0
        until(lambda: self.attempts.ended(pid), 20, "the end of the process")
        assert "and may use 0.00 GiB" in self.excesses()[0]
        assert self.program("1 + 1") == 2

    def keeps_nothing_by_handing_it_on(self) -> None:
        """Memory on a connection that somebody else keeps goes with the process that opened it."""
        self.attempts.handed_on(20 * GIB)
        until(lambda: self.shown()["memory_used_bytes"] <= self.allowed, 20, "its memory")
        assert self.program("1 + 1") == 2

    def is_ended_though_each_is_small(self) -> None:
        """Processes below the tolerance are over the limit together: some are ended until the rest is not."""
        pids = self.attempts.many(self.allowed // (400 << 20) + 3, 400 << 20)
        until(lambda: any(self.attempts.ended(pid) for pid in pids), 30, "the end of a process")
        until(lambda: self.shown()["memory_used_bytes"] <= self.allowed + (512 << 20), 20, "the memory of the rest")
        assert f"may use {gib(self.allowed)}" in self.excesses()[0]
        assert not all(self.attempts.ended(pid) for pid in pids)

    def is_held(self, status: int) -> None:
        """Nothing was got."""
        assert status == OUT_OF_MEMORY
        assert self.shown()["memory_used_bytes"] <= self.allowed
        assert self.codes() == []
