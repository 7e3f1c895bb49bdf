"""A line about downloads that take long, on stderr."""

from __future__ import annotations

import os
import sys
import time

from gpuspawner_runtime.cache.sizes import show_size

#: Nothing is said about what takes no longer than this, and not oftener than once in as long.
_SECONDS = 3.0


class Progress:
    """Says how far a download is, or for whom it waits, once that takes long."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._said = self._began = time.monotonic()
        self._open = False

    def show(self, name: str, done: int, size: int) -> None:
        """`done` of `size` bytes are here."""
        self._say(f"{self._url} {name}: {show_size(done)} of {show_size(size)}")

    def waiting(self, name: str, pid: int | None) -> None:
        """Another reader, perhaps of another process, fetches it."""
        who = f"process {pid}" if pid and pid != os.getpid() else "another reader"
        self._say(f"{self._url} {name}: {who} fetches it, waiting {time.monotonic() - self._began:.0f} s")

    def done(self) -> None:
        """End the line."""
        if self._open:
            print(file=sys.stderr, flush=True)

    def _say(self, text: str) -> None:
        if time.monotonic() - self._said > _SECONDS:
            self._said, self._open = time.monotonic(), True
            print(f"\r{text}", end="", file=sys.stderr, flush=True)
