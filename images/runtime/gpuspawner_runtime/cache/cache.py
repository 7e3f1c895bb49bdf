"""`cached()`: objects of a store as local files, downloaded once."""

from __future__ import annotations

import atexit
import fnmatch
import hashlib
import io
import os
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuspawner_runtime.cache.download import Download, intact, is_of
from gpuspawner_runtime.cache.errors import CacheFull
from gpuspawner_runtime.cache.index import Row
from gpuspawner_runtime.cache.locks import ByteLocks
from gpuspawner_runtime.cache.memory import MemoryTier
from gpuspawner_runtime.cache.prefetch import Prefetcher
from gpuspawner_runtime.cache.progress import Progress
from gpuspawner_runtime.cache.remote import Remote, Version
from gpuspawner_runtime.cache.sizes import parse_size, show_size
from gpuspawner_runtime.cache.store import Store

if TYPE_CHECKING:
    from gpuspawner_runtime.cache.filesystem import CachedFileSystem

_open: dict[tuple[str, str], Cache] = {}
_opening = threading.RLock()
_FLUSH_SECONDS = 1.0
#: How long a reader waits for others to close what they read, when the cache is full.
_ROOM_SECONDS = 30.0


@dataclass
class Stats:
    """What this process had of a cache. Times in seconds, sizes in bytes."""

    memory_hits: int = 0
    hits: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    waited_seconds: float = 0.0


def default_folder() -> Path:
    """Where caches lie: `GPUSPAWNER_CACHE`, else below `XDG_CACHE_HOME` or `~/.cache`."""
    given = os.environ.get("GPUSPAWNER_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuspawner-runtime"


def cached(
    url: str,
    hot: int | str = "8GB",
    *,
    memory: int | str = "256MB",
    folder: str | os.PathLike[str] | None = None,
    check: float = 300.0,
    hashes: Mapping[str, str] | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    workers: int = 4,
) -> Cache:
    """A cache of the objects below an fsspec address (`s3://bucket/set/`), or of the one object at it.

    `hot`: the most that lies on the local disk; `memory`: the most that this process keeps of small objects;
    `folder`: on a local disk (default: `GPUSPAWNER_CACHE` or ~/.cache/gpuspawner-runtime); `check`: seconds for which
    an object is taken to be unchanged in the store; `hashes`: `"sha256:…"` of the object, or of each by name;
    `storage_options`: what fsspec needs for the store; `workers`: connections for one large object.

    Calling it again with the same address gives the same cache, with the new limits. Nothing is fetched yet.
    Raises ValueError for what cannot be meant.
    """
    limits = parse_size(hot, "hot"), parse_size(memory, "memory")
    if not isinstance(url, str) or not url:
        raise ValueError(f"url={url!r} is no address: write it as fsspec does, for example s3://bucket/folder/.")
    if check < 0 or workers < 1:
        raise ValueError(f"check={check!r} must be 0 or more seconds and workers={workers!r} at least 1.")
    named = {"": hashes} if isinstance(hashes, str) else dict(hashes or {})
    for name, text in named.items():
        algorithm, colon, digest = text.partition(":")
        if not colon or algorithm not in hashlib.algorithms_guaranteed or not digest:
            raise ValueError(
                f'hashes: {text!r} for {name or url!r} is not understood; write for example "sha256:9f86…".'
            )
    base = Path(folder) if folder is not None else default_folder()
    place = base / hashlib.blake2b(url.encode(), digest_size=12).hexdigest()
    key = (url, os.path.realpath(place))
    with _opening:
        cache = _open.get(key)
        if cache is None:
            cache = _open[key] = Cache(url, place, *limits)
        cache.configure(check=check, hashes=named, options=dict(storage_options or {}), workers=workers)
        cache.resize(hot=limits[0], memory=limits[1])
        return cache


@dataclass(frozen=True)
class Entry:
    """A file that is here. `until`: when the store has to be asked again (monotonic)."""

    row: Row
    path: str
    until: float


class Cache:
    """Objects of one address. Made by `cached()`. Threads and forked or spawned processes may use it."""

    def __init__(self, url: str, folder: Path, hot: int, memory: int) -> None:
        self.url = url
        self.folder = folder
        self.stats = Stats()
        self._remote = Remote(url, {})
        self._store = Store(folder, hot)
        self._memory = MemoryTier(memory)
        self._known: dict[str, Entry] = {}
        self._listed: tuple[float, dict[str, Version]] | None = None
        self._prefetcher = Prefetcher(self)
        self._paths: dict[str, set[str]] = {}
        self._verified: set[str] = set()
        self._uses: Counter[str] = Counter()
        self._flushed = time.monotonic()
        self.configure(check=300.0, hashes={}, options={}, workers=4)
        atexit.register(_flush_at_exit, weakref.ref(self))

    def configure(self, *, check: float, hashes: Mapping[str, str], options: Mapping[str, Any], workers: int) -> None:
        """Set what `cached()` was given."""
        if dict(options) != self._remote.options:
            self._remote = Remote(self.url, options)
        self._check, self._hashes, self._workers = check, dict(hashes), workers

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (
            self.url,
            str(self.folder.parent),
            {
                "hot": self._store.limit,
                "memory": self._memory.limit,
                "check": self._check,
                "hashes": self._hashes,
                "storage_options": self._remote.options,
                "workers": self._workers,
            },
        )

    def __repr__(self) -> str:
        used = self._store.index.total()
        return f"<cache of {self.url}: {show_size(used)} of {show_size(self._store.limit)} in {self.folder}>"

    def __fspath__(self) -> str:
        """The local file, for an address that is one object: `torch.load(cached("s3://bucket/model.pt"))`."""
        return self.path()

    # -- reading --------------------------------------------------------------------------------------------

    def open(self, name: str = "") -> io.BufferedReader:
        """An object as a file, open for reading. While it is open it is not evicted.

        Raises FileNotFoundError, CacheTooSmall at once if the cache is smaller than the object, CacheFull,
        CacheCorrupt, OSError if the store does not answer and the object is not here.
        """
        entry, fd = self._pinned(name)
        return io.BufferedReader(_Pinned(fd, self._store, entry.row.file))

    def read(self, name: str = "") -> bytes:
        """The content of an object; small ones stay in memory. Raises as `open` does."""
        entry = self._fresh(name)
        data = self._memory.get(entry.row.file) if entry else None
        if data is not None:
            self.stats.memory_hits += 1
            self._count(name)
            return data
        entry, fd = self._pinned(name)
        try:
            with io.FileIO(fd, "rb") as file:
                data = file.readall()
        finally:
            self._store.unpin(entry.row.file)
        self._memory.put(entry.row.file, data)
        return data

    def path(self, name: str = "") -> str:
        """The local file of an object, which stays until `release(name)` or the end of this process.

        It is read-only and shared by all readers. Raises as `open` does.
        """
        entry, fd = self._pinned(name)
        os.close(fd)
        files = self._paths.setdefault(name, set())
        if entry.row.file in files:
            self._store.unpin(entry.row.file)
        files.add(entry.row.file)
        return entry.path

    def release(self, name: str = "") -> None:
        """What `path(name)` gave is not used any more."""
        for file in self._paths.pop(name, set()):
            self._store.unpin(file)

    def files(self, pattern: str = "*") -> list[str]:
        """The names of all objects, in order; asked from the store once in `check` seconds. `*` and `?` match as in a
        shell, slashes too."""
        return sorted(fnmatch.filter(self.versions(), pattern))

    def versions(self) -> dict[str, Version]:
        """Size and mark of all objects, by name; asked from the store once in `check` seconds."""
        if self._listed is None or time.monotonic() - self._listed[0] >= self._check:
            self._listed = time.monotonic(), self._remote.list()
        return self._listed[1]

    def size(self, name: str = "") -> int:
        """Bytes of an object, without fetching it."""
        entry = self._fresh(name)
        return entry.row.size if entry else self._version(name).size

    # -- ahead of the reader --------------------------------------------------------------------------------

    def prefetch(self, names: Iterable[str] | None = None, threads: int = 4) -> None:
        """Fetch objects in the background, in order, as far as they fit; all of them if no names are given."""
        self._prefetcher.start(list(self.files() if names is None else names), threads)

    def iterate(self, names: Iterable[str] | None = None, ahead: int = 4) -> Iterator[tuple[str, io.BufferedReader]]:
        """Name and open file of each object in order, while the next `ahead` are fetched. Close the files."""
        names = list(self.files() if names is None else names)
        with self.ahead(names, ahead) as advance:
            for name in names:
                advance()
                yield name, self.open(name)

    @contextmanager
    def ahead(self, names: list[str], count: int = 4) -> Iterator[Callable[[], None]]:
        """Within the block the next `count` of `names` are fetched; call what it gives before you open each."""
        with self._prefetcher.window(names, count) as advance:
            yield advance

    def filesystem(self) -> CachedFileSystem:
        """This cache as an fsspec file system, for libraries that take one."""
        from gpuspawner_runtime.cache.filesystem import CachedFileSystem

        return CachedFileSystem(self)

    def webdataset(self, shards: str | list[str], ahead: int = 2, **options: Any) -> Any:
        """A `webdataset.WebDataset` of shards here; `options` are its own."""
        from gpuspawner_runtime.cache.readers import webdataset

        return webdataset(self, shards, ahead, **options)

    def mds(self, local: str | os.PathLike[str], **options: Any) -> Any:
        """A `streaming.StreamingDataset` (MDS) of shards here; `local` is its own folder and `options` its own."""
        from gpuspawner_runtime.cache.readers import mds

        return mds(self, local, **options)

    # -- size -----------------------------------------------------------------------------------------------

    def resize(self, hot: int | str | None = None, memory: int | str | None = None) -> int:
        """Other limits, in force at once; the bytes of memory freed. Files in use stay although they are above the
        limit."""
        if hot is not None:
            self._store.limit = parse_size(hot, "hot")
            over = self._store.index.total() - self._store.limit
            if over > 0:
                self._flush()
                self._store.evict(over)
        return self._memory.resize(parse_size(memory, "memory")) if memory is not None else 0

    def used(self) -> int:
        """Bytes on disk, and promised to downloads under way."""
        return self._store.index.total()

    def clear(self) -> int:
        """Remove all that nobody has open; the bytes freed on disk."""
        self._known.clear()
        self._memory.clear()
        return self._store.evict(self._store.index.total())

    def report(self) -> dict[str, int | float]:
        """`stats`, as numbers by name."""
        return asdict(self.stats)

    # -- how ------------------------------------------------------------------------------------------------

    def _fresh(self, name: str) -> Entry | None:
        entry = self._known.get(name)
        return entry if entry is not None and entry.until > time.monotonic() else None

    def _pinned(self, name: str) -> tuple[Entry, int]:
        """A file pinned, and open."""
        began, downloads = time.monotonic(), self.stats.downloads
        known = self._fresh(name)
        fd = self._open_pinned(known) if known else None
        if known and fd is not None:
            entry = known
        else:
            entry = self._find(name)
            try:
                fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
            except BaseException:
                self._store.unpin(entry.row.file)
                raise
            self._known[name] = entry
            self.stats.waited_seconds += time.monotonic() - began
        self._prefetcher.taken(name)
        if downloads == self.stats.downloads:
            self.stats.hits += 1
        self._count(name)
        return entry, fd

    def _open_pinned(self, entry: Entry) -> int | None:
        """The short way, for a file that was here a moment ago; None if it is not."""
        self._store.pin(entry.row.file)
        try:
            return os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._store.unpin(entry.row.file)
            return None

    def _find(self, name: str, *, needed: bool = True) -> Entry:
        """The object here, fetched or compared with the store if need be. The caller unpins its file. `needed`: it is
        waited for room, and what was only fetched ahead makes way."""
        _check_name(name)
        row = self._store.index.newest(name)
        if row is None or time.time() - row.checked >= self._check or not self._pin_good(row):
            row = self._update(name, time.time(), needed)
        left = max(0.0, row.checked + self._check - time.time())
        return Entry(row, str(self._store.place(row.file)), time.monotonic() + left)

    def _update(self, name: str, asked: float, needed: bool) -> Row:
        """Ask the store, and download what is not here; pinned. One process at a time does that for a name, and others
        find it done."""
        progress = Progress(self.url)
        byte = ByteLocks.byte(name)
        with self._store.downloads.exclusive(
            byte, lambda _: progress.waiting(name, self._store.downloads.holder(byte))
        ):
            row = self._store.index.newest(name)
            recent = row is not None and (row.checked >= asked or time.time() - row.checked < self._check)
            if row is not None and not self._pin_good(row):
                row = None
            if row is not None and recent:
                return row
            try:
                version = self._version(name)
                if row is None or row.token != version.token:
                    fetched = self._download(name, version, progress, needed)
                    if row is not None:
                        self._store.unpin(row.file)
                    return fetched
            except BaseException as error:
                if row is None:
                    raise
                if not isinstance(error, OSError) or isinstance(error, FileNotFoundError | PermissionError):
                    self._store.unpin(row.file)
                    raise
                text = (
                    f"{self.url}: the store does not answer ({error}); the copy of {name or 'it'} from before is used."
                )
                warnings.warn(text, stacklevel=5)
            self._store.index.checked(row.file, self._store.boot)
            return self._store.index.rows("file = ?", row.file)[0]

    def _download(self, name: str, version: Version, progress: Progress, needed: bool) -> Row:
        self._flush()
        deadline = time.monotonic() + _ROOM_SECONDS
        while True:
            download = Download(self._store, self._remote, self._workers, progress.show)
            try:
                row = download.run(name, version, self._hashes.get(name))
                break
            except CacheFull:
                if not needed or (not self._prefetcher.give_way(name) and time.monotonic() > deadline):
                    raise
                time.sleep(0.1)
            finally:
                self.stats.downloaded_bytes += download.fetched
        self._verified.add(row.file)
        self.stats.downloads += 1
        progress.done()
        return row

    def _pin_good(self, row: Row) -> bool:
        """Pin a file if it is the one that was downloaded: the same inode, size and time, or, after a restart of the
        machine or where something differs, the same hash. One that is not is forgotten."""
        place = self._store.place(row.file)
        self._store.pin(row.file)
        try:
            stat = place.stat()
            same = (stat.st_ino, stat.st_size, stat.st_mtime_ns) == (row.inode, row.size, row.mtime)
            good = (same and row.boot == self._store.boot) or intact(place, row.digests)
            wanted = self._hashes.get(row.name) if row.file not in self._verified else None
            if good and (wanted is None or is_of(place, wanted)):
                self._verified.add(row.file)
                return True
        except OSError:
            pass
        self._store.unpin(row.file)
        self._store.drop(row)
        return False

    def _version(self, name: str) -> Version:
        if self._listed is not None and time.monotonic() - self._listed[0] < self._check and name in self._listed[1]:
            return self._listed[1][name]
        return self._remote.version(name)

    def _count(self, name: str) -> None:
        self._uses[name] += 1
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        """Tell the index what was used: seldom, since a hit should cost no write."""
        uses, self._uses, self._flushed = self._uses, Counter(), time.monotonic()
        if uses:
            self._store.index.used(uses)


class _Pinned(io.FileIO):
    """An open file that is pinned until it is closed."""

    def __init__(self, fd: int, store: Store, file: str) -> None:
        super().__init__(fd, "rb")
        self._store: Store | None = store
        self._file = file

    def close(self) -> None:
        store, self._store = self._store, None
        super().close()
        if store is not None:
            store.unpin(self._file)


def _after_fork() -> None:
    """A child has none of its parent's threads, and so nobody who would release what they had locked or pinned."""
    global _opening
    _opening = threading.RLock()
    for cache in _open.values():
        cache._memory.after_fork()
        cache._prefetcher.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _again(url: str, folder: str, given: dict[str, Any]) -> Cache:
    return cached(url, folder=folder, **given)


def _check_name(name: str) -> None:
    if name.startswith("/") or "\0" in name or ".." in name.split("/"):
        raise ValueError(f"{name!r} is no name of an object: it is taken from the cache's address on, without '..'.")


def _flush_at_exit(cache: weakref.ref[Cache]) -> None:
    found = cache()
    if found is not None:
        found._flush()
