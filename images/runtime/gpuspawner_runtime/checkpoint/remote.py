"""Checkpoints in any store that fsspec knows, behind the local ones.

There are no renames in an object store: the manifest is uploaded last, and what has none is no checkpoint.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import Any

from gpuspawner_runtime.checkpoint.store import MANIFEST, NAME, PARTIAL, PINNED, Entry, Store, read_manifest
from gpuspawner_runtime.errors import RuntimeFault


class Remote:
    """The checkpoints of `run` below `url`. Errors are those of the store."""

    def __init__(self, url: str, run: str) -> None:
        try:
            import fsspec

            self.files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise RuntimeFault(
                f"The store {_shown(url)} cannot be used: {error}", field="store", given=_shown(url)
            ) from None
        self.root = f"{root.rstrip('/')}/{run}"

    def _at(self, name: str) -> str:
        return f"{self.root}/{name}"

    def entries(self) -> list[Entry]:
        """Checkpoints with a manifest, oldest first; their `path` is where they would lie and holds nothing."""
        found = []
        for name in self._names():
            with contextlib.suppress(OSError, ValueError):
                read = read_manifest(self.files.cat_file(f"{self._at(name)}/{MANIFEST}"))
                size = sum(file["bytes"] for file in read["files"].values())
                entry = Entry(
                    name,
                    Path(self._at(name)),
                    read["serial"],
                    read["step"],
                    str(read["saved"]),
                    size,
                    read["world"],
                    read,
                )
                found.append(entry)
        return sorted(found, key=lambda entry: entry.serial)

    def _names(self) -> list[str]:
        self.files.invalidate_cache()
        try:
            listed = self.files.ls(self.root, detail=False)
        except FileNotFoundError:
            return []
        names = [str(each).rstrip("/").rsplit("/", 1)[-1] for each in listed]
        return [name for name in names if NAME.fullmatch(name)]

    def upload(self, entry: Entry) -> None:
        self.files.makedirs(self._at(entry.name), exist_ok=True)
        for name in [*entry.manifest["files"], MANIFEST]:
            self.files.put_file(str(entry.path / name), f"{self._at(entry.name)}/{name}")

    def fetch(self, entry: Entry, store: Store) -> Entry | str:
        """Bring a checkpoint into the local store, compared with its hashes; else the reason why not."""
        partial = store.folder / f"{PARTIAL}{entry.name}-{secrets.token_hex(4)}"
        if missing := store.room(entry.bytes):
            return f"{missing / 2**20:.0f} MiB are missing on the local disk"
        partial.mkdir(parents=True)
        try:
            for name in [*entry.manifest["files"], MANIFEST]:
                self.files.get_file(f"{self._at(entry.name)}/{name}", str(partial / name))
            here = Entry(**{**vars(entry), "path": partial})
            if (problem := store.problem(here)) is not None:
                store.remove(partial)
                return problem
        except OSError as error:
            store.remove(partial)
            return f"it cannot be read ({error})"
        target = store.folder / store.free_name(entry.name)
        partial.rename(target)
        return Entry(**{**vars(entry), "path": target, "name": target.name})

    def _there(self, place: str) -> bool:
        """Whether a file is there. Raises what the store raises: fsspec's own `exists` takes every error for a no."""
        try:
            self.files.info(place)
        except FileNotFoundError:
            return False
        return True

    def pin(self, name: str, on: bool) -> None:
        place = f"{self._at(name)}/{PINNED}"
        if on:
            self.files.pipe_file(place, b"")
        elif self._there(place):
            self.files.rm_file(place)

    def prune(self, keep: int) -> None:
        """Remove all but the newest `keep` and the pinned, and what older uploads left unfinished."""
        entries = self.entries()
        free = [each for each in entries if not self._there(f"{self._at(each.name)}/{PINNED}")]
        gone = [each.name for each in free[: max(0, len(free) - keep)]]
        known = {each.name for each in entries}
        gone += [n for n in self._names() if n not in known and not self._there(f"{self._at(n)}/{MANIFEST}")]
        for name in gone:
            with contextlib.suppress(FileNotFoundError):
                self.files.rm_file(f"{self._at(name)}/{MANIFEST}")
            self.files.rm(self._at(name), recursive=True)


def _shown(url: Any) -> str:
    """A URL without what may be a password."""
    text = str(url)
    scheme, mark, rest = text.partition("://")
    return f"{scheme}{mark}{rest.rsplit('@', 1)[-1]}" if mark else text
