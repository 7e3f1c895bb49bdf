"""Recognising a process again later, although pids are reused."""

from __future__ import annotations

from pathlib import Path


def start_time(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot (field 22 of /proc/PID/stat); None if there is
    no such process or only its zombie is left."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the command's name may hold spaces and brackets; the fields after it cannot
    fields = stat.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def is_same(pid: int, started: int) -> bool:
    """Whether `pid` is still the process that started at `started`."""
    return pid > 0 and start_time(pid) == started
