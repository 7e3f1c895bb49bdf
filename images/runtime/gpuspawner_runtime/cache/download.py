"""One download: in parts, each noted with its hash as soon as it is on disk, so that a killed one goes on from
there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from gpuspawner_runtime.cache.errors import CacheCorrupt
from gpuspawner_runtime.cache.index import Row
from gpuspawner_runtime.cache.remote import Remote, Version
from gpuspawner_runtime.cache.store import Store

PART = 16 * 1024 * 1024
_TRIES = 3
Progress = Callable[[str, int, int], None]


class Download:
    """Brings one version of an object into a store. The caller holds the object's lock in `store.downloads`."""

    def __init__(self, store: Store, remote: Remote, workers: int, progress: Progress) -> None:
        self._store, self._remote, self._workers, self._progress = store, remote, workers, progress
        self.fetched = 0  # bytes that came over the network

    def run(self, name: str, version: Version, wanted: str | None) -> Row:
        """The complete, compared and published file.

        `wanted`: `sha256:…` or another hash that hashlib knows, or None. Raises CacheCorrupt if the content is not that
        of the hash or of the store's MD5, or changes all the time; CacheTooSmall, CacheFull; OSError.
        """
        md5, complaint = None, ""
        for _ in range(_TRIES):
            row = self._store.reserve(name, version.token, version.size)
            part = Path(f"{self._store.place(row.file)}.part")
            digests = self._parts(name, version, part)
            before, md5 = md5, _digest(part, "md5") if version.md5 else None
            now = version if md5 and md5 == version.md5 else self._remote.version(name)
            if now != version:
                complaint = "was changed in the store while it was read"
            elif wanted and not is_of(part, wanted):
                complaint = f"is not what {wanted} stands for"
            elif md5 not in (version.md5, before):
                # The marks of some encrypted stores look like an MD5 and are none: there the same content comes twice.
                complaint = "does not have the hash that the store gives"
            else:
                return self._store.publish(row, ",".join(digests))
            self._discard(row, part)
            version = now
        raise CacheCorrupt(f"{self._remote.url}: {name or 'the object'} {complaint}; tried {_TRIES} times.")

    def _discard(self, row: Row, part: Path) -> None:
        for path in (part, part.with_suffix(".journal")):
            path.unlink(missing_ok=True)
        self._store.index.remove(row.file)

    def _parts(self, name: str, version: Version, part: Path) -> list[str]:
        """Fetch what is missing; the SHA-256 of every part, in order."""
        count = max(1, -(-version.size // PART))
        journal_path = part.with_suffix(".journal")
        done = _resume(part, journal_path, count)
        self._progress(name, sum(_length(i, version.size) for i in done), version.size)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(part, flags, 0o600)
        journal = os.open(journal_path, flags | os.O_APPEND, 0o600)
        try:
            os.truncate(fd, version.size)

            def fetch(i: int) -> tuple[int, str]:
                start = i * PART
                data = self._remote.fetch(name, start, start + _length(i, version.size), version.size)
                _write_all(fd, data, start)
                digest = hashlib.sha256(data).hexdigest()
                os.write(journal, (json.dumps([i, digest]) + "\n").encode())
                return i, digest

            todo = [i for i in range(count) if i not in done]
            for i, digest in self._each(fetch, todo):
                done[i] = digest
                self.fetched += _length(i, version.size)
                self._progress(name, sum(_length(k, version.size) for k in done), version.size)
        finally:
            os.close(fd)
            os.close(journal)
        return [done[i] for i in range(count)]

    def _each(self, fetch: Callable[[int], tuple[int, str]], todo: list[int]) -> Iterator[tuple[int, str]]:
        if len(todo) < 2 or self._workers < 2:
            yield from map(fetch, todo)
            return
        pool = ThreadPoolExecutor(min(self._workers, len(todo)), thread_name_prefix="cache-part")
        try:
            futures: set[Future[tuple[int, str]]] = {pool.submit(fetch, i) for i in todo}
            while futures:
                finished, futures = wait(futures, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _length(i: int, size: int) -> int:
    return min(PART, size - i * PART)


def _resume(part: Path, journal: Path, count: int) -> dict[int, str]:
    """The parts of an interrupted download that are on disk and good."""
    found: dict[int, str] = {}
    try:
        lines = journal.read_text().splitlines()
        with part.open("rb") as file:
            for line in lines:
                i, digest = json.loads(line)
                file.seek(int(i) * PART)
                if 0 <= i < count and hashlib.sha256(file.read(PART)).hexdigest() == digest:
                    found[i] = digest
    except (OSError, ValueError, TypeError):
        pass  # the last line may be torn, and what stands before it counts
    return found


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def is_of(path: Path, wanted: str) -> bool:
    """Whether a file has the hash `wanted`, as in `sha256:9f86…`."""
    algorithm, _, digest = wanted.partition(":")
    return _digest(path, algorithm) == digest.lower()


def intact(path: Path, digests: str) -> bool:
    """Whether a file still has the content that was downloaded."""
    try:
        with path.open("rb") as file:
            found = [hashlib.sha256(file.read(PART)).hexdigest() for _ in digests.split(",")]
            return not file.read(1) and found == digests.split(",")
    except OSError:
        return False
