"""A cgroup of version 2 for a test, where this machine lets us make one."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path


def root() -> Path | None:
    """Where cgroups of version 2 are mounted, if we may make one there."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where) if os.access(where, os.W_OK) else None
    return None


@contextlib.contextmanager
def cgroup(below: Path) -> Iterator[Path]:
    """A new cgroup; at the end its processes are killed and it is removed."""
    path = below / f"test-{secrets.token_hex(4)}"
    path.mkdir()
    try:
        yield path
    finally:
        remove(path)


def remove(path: Path) -> None:
    """Kill what is in a cgroup and remove it."""
    deadline = time.monotonic() + 10
    while path.exists():
        with contextlib.suppress(OSError):
            (path / "cgroup.kill").write_text("1")
        with contextlib.suppress(OSError):
            path.rmdir()
        assert time.monotonic() < deadline, f"{path} cannot be removed"


def move(pid: int, to: Path) -> None:
    """Put a process into a cgroup."""
    (to / "cgroup.procs").write_text(str(pid))
