"""Fetching ahead of the reader, in threads that end with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuspawner_runtime.cache.errors import CacheFull

if TYPE_CHECKING:
    from gpuspawner_runtime.cache.cache import Cache


class Window:
    """What a reader will read next. Objects are fetched and pinned until they are read, at most `ahead` of them."""

    def __init__(self, names: Sequence[str], ahead: int) -> None:
        self.names, self.ahead = names, ahead
        self.condition = threading.Condition()
        self.next = 0  # of names, to be fetched
        self.read = 0  # of names, by the reader
        self.stopped = False

    def take(self) -> int | None:
        """Which name to fetch next, once the reader is near enough; None at the end."""
        with self.condition:
            while not self.stopped and self.next < len(self.names) and self.next >= self.read + self.ahead:
                self.condition.wait()
            if self.stopped or self.next >= len(self.names):
                return None
            self.next += 1
            return self.next - 1

    def advance(self) -> None:
        """The reader opens the next name now."""
        with self.condition:
            self.read += 1
            self.next = max(self.next, self.read)
            self.condition.notify_all()

    def stop(self) -> None:
        """Fetch nothing more."""
        with self.condition:
            self.stopped = True
            self.condition.notify_all()


class Prefetcher:
    """The threads of one cache in this process, and the pins of what they fetched and nobody has read yet."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._pins: dict[str, str] = {}  # name: file

    def start(self, names: Sequence[str], threads: int) -> None:
        """Fetch all names in the background. They are not pinned."""
        self._threads(Window(names, len(names)), threads, pin=False)

    @contextmanager
    def window(self, names: Sequence[str], ahead: int) -> Iterator[Callable[[], None]]:
        """Fetch ahead of a reader until the block ends. The reader calls what this gives before it opens the next."""
        window = Window(names, ahead)
        self._threads(window, min(ahead, len(names)), pin=True)

        def advance() -> None:
            before = window.read - 1
            window.advance()
            if before >= 0:  # it may have been fetched while the reader already waited for it
                self.taken(names[before])

        try:
            yield advance
        finally:
            window.stop()
            for name in names:
                self.taken(name)

    def _threads(self, window: Window, count: int, *, pin: bool) -> None:
        for _ in range(count):
            threading.Thread(target=self._work, args=(window, pin), name="cache-prefetch", daemon=True).start()

    def _work(self, window: Window, pin: bool) -> None:
        while (which := window.take()) is not None:
            try:
                self._fetch(window, which, pin)
            except CacheFull:
                if not pin:
                    return
            except Exception:
                continue

    def _fetch(self, window: Window, which: int, pin: bool) -> None:
        name, store = window.names[which], self._cache._store
        entry = self._cache._find(name, needed=False)  # pinned
        with self._lock, window.condition:
            self._cache._known[name] = entry
            if pin and not window.stopped and which >= window.read - 1 and name not in self._pins:
                self._pins[name] = entry.row.file
                return
        store.unpin(entry.row.file)

    def after_fork(self) -> None:
        """In a child: the parent's threads and what they fetched are not its own."""
        self._lock = threading.Lock()
        for name in list(self._pins):
            self.taken(name)

    def taken(self, name: str) -> None:
        """`name` is read now, or not wanted any more."""
        if not self._pins:
            return
        with self._lock:
            file = self._pins.pop(name, None)
        if file is not None:
            self._cache._store.unpin(file)

    def give_way(self, name: str) -> bool:
        """Let go of what was fetched last, to make room for `name`; whether there was anything."""
        with self._lock:
            names = [other for other in self._pins if other != name]
        if names:
            self.taken(names[-1])
        return bool(names)
