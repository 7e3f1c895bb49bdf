"""The logs folder: one log for each part and, in `servers/`, one for each session."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

#: Bytes from which on a log is cut, and how many of its last ones stay.
LONGEST = 64 << 20
KEPT = 1 << 20
_LOGS_KEPT = 5
_SERVER_LOGS_KEPT_DAYS = 14
_BLOCK = 512  # st_blocks counts in these whatever the file system's own size


def rotate(logs: Path) -> None:
    """Number the last run's logs (NAME.log.1 is the newest) and drop servers' logs of long ago."""
    for current in logs.glob("*.log"):
        for number in range(_LOGS_KEPT - 1, 0, -1):
            older = current.with_name(f"{current.name}.{number}")
            if older.exists():
                older.replace(current.with_name(f"{current.name}.{number + 1}"))
        current.replace(current.with_name(f"{current.name}.1"))
    oldest = time.time() - _SERVER_LOGS_KEPT_DAYS * 86400
    for log in (logs / "servers").glob("*.log"):
        if log.stat().st_mtime < oldest:
            log.unlink()


async def keep_short(logs: Path) -> None:
    """Cut what grew too long, every second, until cancelled. Who writes fast gets further in between."""
    while True:
        for log in _all(logs):
            if _taken(log) > LONGEST:
                await asyncio.to_thread(cut, log)
        await asyncio.sleep(1.0)


def cut(log: Path, longest: int = LONGEST, kept: int = KEPT) -> bool:
    """Cut a log that takes more than `longest` bytes down to a line that says so and its last `kept` bytes; whether
    it was.

    A session's server holds its log open for writing: it may have made it seem longer than what was written, or have
    reserved room past its end, and what it writes in this moment may be lost. Whoever writes goes on at the new end.
    """
    if _taken(log) <= longest:
        return False
    try:
        descriptor = os.open(log, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, kept, max(0, size - kept))
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"[the log was longer than %d MiB and was cut here]\n" % (longest >> 20) + end)
    except OSError:  # a full disk; it is shorter now in any case
        pass
    finally:
        os.close(descriptor)
    return True


def _all(logs: Path) -> Iterator[Path]:
    yield from logs.glob("*.log")
    yield from (logs / "servers").glob("*.log")


def _taken(log: Path) -> int:
    """The bytes that a log has, or takes on the disk where that is more; 0 if it is gone."""
    try:
        found = log.lstat()
    except OSError:
        return 0
    return max(found.st_size, found.st_blocks * _BLOCK)
