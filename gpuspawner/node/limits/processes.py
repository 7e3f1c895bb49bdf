"""Watching and ending a session from outside, by the file `alive` on which its guard holds a lock.

The lock is held until the last process of the session ended. While it is held, the pids in the file cannot be anyone
else's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ALIVE = "alive"
ORDER_TO_KILL = signal.SIGRTMIN + 3
"""By this signal the guard ends everything below it at once; `order_to_kill()` in the launcher."""

_F_OFD_GETLK = 36
_FLOCK = struct.Struct("@hhqqi4x")
_AFTER_KILL_S = 10.0


@dataclass(frozen=True)
class Alive:
    """What the guard wrote: host pids; `pid_namespace` is 0 where the session has none of its own, and `child` where
    it wrote over that.
    """

    guard: int
    child: int
    pid_namespace: int


def session_alive(session_dir: Path) -> bool:
    """Whether any process of the session is left. Asks about the lock without taking it, so it never disturbs a
    start.
    """
    return _locked_bytes(session_dir) is not None


def _locked_bytes(session_dir: Path) -> int | None:
    """How many bytes of `alive` are locked from its beginning, 0 for all there can be; None where none are."""
    try:
        fd = os.open(session_dir / ALIVE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # only one lock can be on the first byte, and it is told whole
        answer = fcntl.fcntl(fd, _F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    finally:
        os.close(fd)
    kind, _, _, length, _ = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else int(length)


def was_started(session_dir: Path) -> bool:
    """Whether a launcher ever ran for the session: it leaves what it wrote."""
    try:
        return (session_dir / ALIVE).stat().st_size > 0
    except FileNotFoundError:
        return False


def read_alive(session_dir: Path) -> Alive | None:
    """What the running session's guard wrote; None if it does not run, or has not yet written.

    Where no namespace keeps the session from the file, it may write there what it likes. There the guard says its pid
    by the length of its lock as well, and that alone counts.
    """
    guard = _locked_bytes(session_dir)
    if guard is None:
        return None
    try:
        words = (session_dir / ALIVE).read_text(errors="replace").split()
        found = dict(zip(words[::2], words[1::2], strict=False))
        wrote = Alive(int(found["guard"]), int(found["child"]), int(found["pidns"]))
    except (OSError, KeyError, ValueError):
        return Alive(guard, 0, 0) if guard else None
    return Alive(guard, wrote.child, 0) if guard else wrote


def _parents() -> dict[int, int]:
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = (folder / "stat").read_text(errors="replace")
                parents[int(folder.name)] = int(text.rpartition(")")[2].split()[1])
    return parents


def owners(session_dirs: Iterable[Path], pids: Iterable[int]) -> dict[int, Path]:
    """Which of the sessions each of `pids` (of the host) is in; others are left out. Looks at those and their
    ancestors alone, so that it costs little on a machine with many processes.
    """
    wanted = list(pids)
    namespaces: dict[int, Path] = {}
    roots: dict[int, Path] = {}
    for session_dir in session_dirs if wanted else ():
        alive = read_alive(session_dir)
        if alive is not None:
            roots[alive.child if alive.pid_namespace else alive.guard] = session_dir
            if alive.pid_namespace:
                namespaces[alive.pid_namespace] = session_dir
    found = {}
    for pid in wanted if roots else ():
        owner = namespaces.get(_namespace_of(pid)) or _ancestor_among(pid, roots)
        if owner is not None:
            found[pid] = owner
    return found


def _namespace_of(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return 0


def _ancestor_among(pid: int, roots: dict[int, Path]) -> Path | None:
    """The session whose root is the process itself, or one from which it descends."""
    while pid > 1:
        if pid in roots:
            return roots[pid]
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
    return None


def session_pids(session_dir: Path) -> set[int]:
    """Host pids of the processes in the session, PID 1 of its namespace included; empty if it does not run.

    In a namespace everyone is below PID 1, and without one below the guard, which is the reaper of all orphans. A
    process whose namespace can be read counts by that too, so that one that is being handed to its reaper is not
    missed.
    """
    alive = read_alive(session_dir)
    if alive is None:
        return set()
    parents = _parents()
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [alive.child] if alive.pid_namespace else list(children.get(alive.guard, []))
    while waiting:
        pid = waiting.pop()
        if pid in parents and pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    if alive.pid_namespace:
        for pid in parents:
            if _namespace_of(pid) == alive.pid_namespace:
                found.add(pid)
    return found


def end_session(session_dir: Path, timeout: float = 5.0) -> bool:
    """Ask the server to end (SIGTERM), after `timeout` seconds end everything. True once no process is left."""
    alive = read_alive(session_dir)
    if alive is None:
        return not session_alive(session_dir)
    try:
        guard = os.pidfd_open(alive.guard)
    except ProcessLookupError:
        return not session_alive(session_dir)
    try:
        if read_alive(session_dir) != alive:  # it ended meanwhile, and the pid may be another's
            return not session_alive(session_dir)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(guard, signal.SIGTERM)
        if not _ended(guard, timeout):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(guard, ORDER_TO_KILL)
            _ended(guard, _AFTER_KILL_S)
    finally:
        os.close(guard)
    return not session_alive(session_dir)


def _ended(pidfd: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        if poll.poll(max(0.0, left) * 1000):
            return True
        if left <= 0:
            return False
