"""The memory tier: whole small objects of this process, the least lately used going first."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict

_all: weakref.WeakSet[MemoryTier] = weakref.WeakSet()


class MemoryTier:
    """Up to `limit` bytes of objects, by the file that they are in. An object may have a quarter of that."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._lock = threading.Lock()
        self._data: OrderedDict[str, bytes] = OrderedDict()
        _all.add(self)

    def get(self, file: str) -> bytes | None:
        """The content of a file, if it is here."""
        with self._lock:
            data = self._data.get(file)
            if data is not None:
                self._data.move_to_end(file)
            return data

    def put(self, file: str, data: bytes) -> None:
        """Keep a content, unless it is large."""
        if len(data) > self.limit // 4:
            return
        with self._lock:
            self.used += len(data) - len(self._data.pop(file, b""))
            self._data[file] = data
            self._trim()

    def resize(self, limit: int) -> int:
        """Another limit; the bytes freed."""
        with self._lock:
            before = self.used
            self.limit = limit
            self._trim()
            return before - self.used

    def clear(self) -> int:
        """Forget everything; the bytes freed."""
        with self._lock:
            freed, self.used = self.used, 0
            self._data.clear()
            return freed

    def after_fork(self) -> None:
        """In a child: whoever had the lock is not here."""
        self._lock = threading.Lock()

    def _trim(self) -> None:
        while self.used > self.limit:
            self.used -= len(self._data.popitem(last=False)[1])


def free_memory() -> int:
    """Empty the memory tiers of this process; the bytes freed. What they held stays on disk."""
    return sum(tier.clear() for tier in list(_all))
