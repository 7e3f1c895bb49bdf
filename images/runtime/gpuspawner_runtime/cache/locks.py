"""Locks between threads and processes that end with the process that holds them.

A POSIX record lock on one byte of a file is a lock for one name. The kernel takes it back when its process dies,
however that dies, and a forked child does not inherit it (as it would `flock`, and then keep it after its parent's
death). Two things follow from POSIX: such locks know processes and no threads, so a table in the process stands beside
them; and closing any descriptor of the file would drop them all, so each file is opened once and never closed.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = "hhqqi4x"
_SLOWEST_POLL = 0.05


class ByteLocks:
    """The locks of one file. Use `ByteLocks.of(path)`: there may be only one for each file in a process."""

    _all: dict[str, ByteLocks] = {}  # noqa: RUF012 (one table for the process is what is meant)
    _making = threading.Lock()

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._guard = threading.Lock()
        self._exclusive: set[int] = set()
        self._shared: dict[int, int] = {}

    @classmethod
    def of(cls, path: str) -> ByteLocks:
        """The locks of the file at `path`, made if it is not there. Raises OSError."""
        real = os.path.realpath(path)
        with cls._making:
            if real not in cls._all:
                cls._all[real] = cls(real)
            return cls._all[real]

    @staticmethod
    @functools.lru_cache(maxsize=1 << 16)
    def byte(name: str) -> int:
        """The byte that stands for a name: 60 bits of its hash."""
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 4

    def try_exclusive(self, byte: int) -> bool:
        """Take the byte for this thread alone, if nobody holds it in either way."""
        with self._guard:
            if byte in self._exclusive or byte in self._shared or not self._lock(byte, fcntl.LOCK_EX):
                return False
            self._exclusive.add(byte)
            return True

    def release(self, byte: int) -> None:
        """Give back what `try_exclusive` took."""
        with self._guard:
            self._exclusive.discard(byte)
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)

    @contextmanager
    def exclusive(self, byte: int, waiting: Callable[[float], None] | None = None) -> Iterator[None]:
        """Wait for the byte and hold it. `waiting` is called with the seconds waited so far, and may raise."""
        self._poll(lambda: self.try_exclusive(byte), waiting)
        try:
            yield
        finally:
            self.release(byte)

    def hold(self, byte: int) -> None:
        """Hold the byte together with whoever else holds it so, once more. Waits while somebody has it alone."""
        if not self._try_shared(byte):
            self._poll(lambda: self._try_shared(byte), None)

    def drop(self, byte: int) -> None:
        """Undo one `hold`."""
        with self._guard:
            count = self._shared.get(byte, 0)
            if count > 1:
                self._shared[byte] = count - 1
            elif count == 1:
                del self._shared[byte]
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)

    def holder(self, byte: int) -> int | None:
        """The pid of another process that holds the byte, if one does and is visible here."""
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))
        return pid if kind != fcntl.F_UNLCK and pid > 0 else None

    def _try_shared(self, byte: int) -> bool:
        with self._guard:
            if byte in self._exclusive:
                return False
            if byte not in self._shared and not self._lock(byte, fcntl.LOCK_SH):
                return False
            self._shared[byte] = self._shared.get(byte, 0) + 1
            return True

    def _lock(self, byte: int, how: int) -> bool:
        try:
            fcntl.lockf(self._fd, how | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):
            return False
        return True

    @staticmethod
    def _poll(attempt: Callable[[], bool], waiting: Callable[[float], None] | None) -> None:
        """Asked again and again, since a blocking call would report deadlocks between threads that are none."""
        began, pause = time.monotonic(), 0.001
        while not attempt():
            if waiting is not None:
                waiting(time.monotonic() - began)
            time.sleep(pause)
            pause = min(pause * 1.5, _SLOWEST_POLL)

    @classmethod
    def _after_fork(cls) -> None:
        """A child has its parent's table and none of its locks: it takes the shared ones for itself, so that what it
        has open stays, and forgets the others."""
        cls._making = threading.Lock()
        for locks in cls._all.values():
            locks._guard = threading.Lock()
            locks._exclusive.clear()
            for byte in list(locks._shared):
                locks._lock(byte, fcntl.LOCK_SH)


os.register_at_fork(after_in_child=ByteLocks._after_fork)
