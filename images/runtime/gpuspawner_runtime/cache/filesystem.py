"""A cache as an fsspec file system, for libraries that take one (pandas, pyarrow, zarr, datasets)."""

from __future__ import annotations

from typing import Any

from fsspec.spec import AbstractFileSystem

from gpuspawner_runtime.cache.cache import Cache


class CachedFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Reads through a cache. Names are those of the cache. Writing is refused."""

    protocol = "gpuspawner-cache"
    cachable = False

    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self._cache = cache

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix(f"{cls.protocol}://").strip("/")

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Size and type of an object or folder. Raises FileNotFoundError."""
        name = self._strip_protocol(path)
        listed = self._cache.versions()
        if name in listed:
            return {"name": name, "size": listed[name].size, "type": "file", "token": listed[name].token}
        if not name or any(other.startswith(f"{name}/") for other in listed):
            return {"name": name, "size": 0, "type": "directory"}
        raise FileNotFoundError(f"{self._cache.url}: there is no {name}.")

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """What is in a folder."""
        name = self._strip_protocol(path)
        listed = self._cache.versions()
        if name and name in listed:
            names = [name]
        else:
            below = f"{name}/" if name else ""
            names = sorted({below + n[len(below) :].split("/")[0] for n in listed if n.startswith(below)})
            if not names:
                raise FileNotFoundError(f"{self._cache.url}: there is no {name}.")
        return [self.info(n) for n in names] if detail else names

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode != "rb":
            raise PermissionError(f"A cache is read-only, and {path} was to be opened with mode {mode!r}.")
        return self._cache.open(self._strip_protocol(path))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The content of an object, or a part of it."""
        return self._cache.read(self._strip_protocol(path))[start:end]

    def ukey(self, path: str) -> str:
        """What changes with the object's content."""
        return str(self.info(path).get("token"))
