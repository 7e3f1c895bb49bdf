"""The object store's side of a cache: what fsspec says of an object, and its bytes."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuspawner_runtime.cache.errors import CacheError

T = TypeVar("T")
_MD5 = re.compile(r"[0-9a-f]{32}")
_TRIES = 4
#: What an fsspec implementation calls the mark of a version, best first.
_MARKS = (
    "ETag",
    "etag",
    "md5Hash",
    "generation",
    "Content-MD5",
    "LastModified",
    "last_modified",
    "Last-Modified",
    "mtime",
)


@dataclass(frozen=True)
class Version:
    """What the store says of an object. `token`: differs when its content does, empty if the store tells nothing;
    `size`: bytes; `md5`: its hash where the store's mark looks like one."""

    token: str
    size: int
    md5: str | None


class Remote:
    """Objects below `url`, or the one object there. Usable after a fork and from any thread."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url = url
        self.options = dict(options)
        self._lock = threading.Lock()
        self._pid = -1
        self._fs: Any = None
        self._root = ""

    def filesystem(self) -> tuple[Any, str]:
        """The fsspec file system, and the path of the root in it. Raises CacheError where a package is missing."""
        if self._pid != os.getpid():
            self._lock = threading.Lock() if self._pid != -1 else self._lock
            with self._lock:
                import fsspec

                try:
                    options = {"use_listings_cache": False, "skip_instance_cache": True, **self.options}
                    self._fs, self._root = fsspec.core.url_to_fs(self.url, **options)
                except (ImportError, ValueError) as error:
                    raise CacheError(f"{self.url} cannot be read: {error}") from error
                self._pid = os.getpid()
        return self._fs, self._root

    def path(self, name: str) -> str:
        """The path of an object in the file system; of the root for an empty name."""
        root = self.filesystem()[1]
        return f"{root.rstrip('/')}/{name}" if name else root

    def version(self, name: str) -> Version:
        """What the store says of an object now. Raises FileNotFoundError, OSError, CacheError."""
        fs, path = self.filesystem()[0], self.path(name)

        def once() -> Mapping[str, Any]:
            try:
                found: Mapping[str, Any] = fs.info(path)
            except FileNotFoundError as error:
                raise _cause(error, path) from error
            return found

        info = _again(once)
        if info.get("type") == "directory":
            raise IsADirectoryError(f"{self.url}: {name or 'the address'} is a folder; name an object in it.")
        return _version(info, path)

    def list(self) -> dict[str, Version]:
        """All objects below the root, by name."""
        fs, root = self.filesystem()
        root = root.rstrip("/")
        found = _again(lambda: fs.find(root, detail=True))
        return {
            path.removeprefix(root).lstrip("/"): _version(info, path)
            for path, info in found.items()
            if info.get("type") != "directory" and info.get("size") is not None
        }

    def fetch(self, name: str, start: int, end: int, size: int) -> bytes:
        """Bytes `start` to `end` of an object of `size` bytes. Raises OSError if not just those arrive."""
        fs, path = self.filesystem()[0], self.path(name)

        def once() -> bytes:
            data: bytes = fs.cat_file(path) if (start, end) == (0, size) else fs.cat_file(path, start=start, end=end)
            if len(data) == size != end - start:  # a server that knows no ranges sends all of it
                data = data[start:end]
            if len(data) != end - start:
                raise OSError(f"{self.url}: {len(data)} bytes of {name} arrived instead of {end - start}.")
            return data

        return _again(once)


def _cause(error: FileNotFoundError, path: str) -> Exception:
    """fsspec's HTTP says of any fault that nothing is there; what it really was."""
    cause = error.__cause__
    if getattr(cause, "status", None) in (401, 403):
        return PermissionError(f"{path}: the store does not let you read it ({cause}).")
    if isinstance(cause, Exception) and not isinstance(cause, FileNotFoundError) and _passing(cause):
        return OSError(f"{path}: {cause}")
    return FileNotFoundError(str(error) or path)


def _version(info: Mapping[str, Any], path: str) -> Version:
    size = info.get("size")
    if size is None:
        raise CacheError(f"The store does not say how large {path} is, and a cache has to know.")
    mark = next((str(info[key]) for key in _MARKS if info.get(key) is not None), "")
    bare = mark.strip('"').removeprefix("W/").strip('"')
    return Version(token=f"{bare}:{size}" if bare else "", size=int(size), md5=bare if _MD5.fullmatch(bare) else None)


def _again(attempt: Callable[[], T]) -> T:
    """Up to four tries, with growing pauses, of what the network may have spoiled."""
    for tries in range(_TRIES - 1):
        try:
            return attempt()
        except (FileNotFoundError, PermissionError, IsADirectoryError, CacheError):
            raise
        except Exception as error:
            if not _passing(error):
                raise
            time.sleep(0.1 * 4**tries)
    return attempt()


def _passing(error: Exception) -> bool:
    """Whether trying again may help: time-outs, broken connections, and what HTTP clients raise for them."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return status >= 500 or status in (408, 429)
    return isinstance(error, OSError | EOFError) or type(error).__module__.partition(".")[0] in ("aiohttp", "botocore")
