"""A run's checkpoints in a folder: what is there, whether it is whole, what may go.

    RUN/
      lock                       held by whoever trains the run
      step-1200/
        rank-0.safetensors       tensors (https://github.com/huggingface/safetensors)
        rank-0.pt                everything else; torch.load(..., weights_only=True)
        manifest.json            sizes and hashes of all files and of itself; written last
        pinned                   there while the checkpoint is kept for good
      .partial-step-1300-TOKEN/  being written, or left over

A checkpoint is a folder with a manifest whose hashes are those of its files. No file says which one is the newest.
Nothing here needs PyTorch.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
MANIFEST, PINNED, PARTIAL = "manifest.json", "pinned", ".partial-"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}", re.ASCII)
#: Bytes that are hashed as one piece, so that two processors can hash one file.
PIECE = 16 * 1024 * 1024
#: Room that is left free on the disk beside a checkpoint.
MARGIN = 64 * 1024 * 1024


def hash_piece(data: Any) -> str:
    """SHA-256 of bytes: processors have instructions for it."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Entry:
    """A checkpoint with a readable manifest. `serial` counts saves of the run: the highest is the newest."""

    name: str
    path: Path
    serial: int
    step: int
    saved: str
    bytes: int
    world: int
    manifest: dict[str, Any]

    @property
    def pinned(self) -> bool:
        return (self.path / PINNED).exists()


@dataclass(frozen=True)
class Skipped:
    """What lies there and is no checkpoint, and why."""

    name: str
    reason: str


def sealed(manifest: dict[str, Any]) -> bytes:
    """A manifest as its file has it: with the hash of all else in it."""
    return json.dumps({**manifest, "hash": _hash(manifest)}).encode()


def _hash(manifest: dict[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "hash"}
    return hash_piece(json.dumps(rest, sort_keys=True).encode())


def read_manifest(raw: bytes) -> dict[str, Any]:
    """A manifest from its file. Raises ValueError with the reason."""
    try:
        read = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("its manifest is not whole") from None
    if not isinstance(read, dict) or read.get("format") != FORMAT:
        raise ValueError(f"its manifest is not of format {FORMAT}")
    files = read.get("files")
    if not isinstance(files, dict) or not files or not all(NAME.fullmatch(name) for name in files):
        raise ValueError("its manifest names no files")
    for name in ("serial", "step", "world", "failures", "trained"):
        if not isinstance(read.get(name), float if name == "trained" else int):
            raise ValueError(f"its manifest has no {name}")
    if not all(_is_file(file) for file in files.values()):
        raise ValueError("its manifest does not say what its files hold")
    if read.get("hash") != _hash(read):
        raise ValueError("its manifest is not what was written")
    return read


def _is_file(told: Any) -> bool:
    """Whether a manifest's words on a file are its bytes and a hash for each piece of it."""
    if not isinstance(told, dict):
        return False
    size, pieces = told.get("bytes"), told.get("pieces")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        return False
    return isinstance(pieces, list) and len(pieces) == -(-size // PIECE)


class Store:
    """The checkpoints of one run in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def look(self) -> tuple[list[Entry], list[Skipped]]:
        """Checkpoints with a manifest, oldest first; and what is incomplete. Hashes are not compared here."""
        found, skipped = [], []
        for path in self._folders():
            if path.name.startswith(PARTIAL):
                skipped.append(Skipped(path.name, "it was not finished"))
            elif NAME.fullmatch(path.name):
                try:
                    found.append(self._entry(path))
                except (OSError, ValueError) as problem:
                    reason = "it has no manifest" if isinstance(problem, OSError) else str(problem)
                    skipped.append(Skipped(path.name, reason))
        return sorted(found, key=lambda entry: entry.serial), skipped

    def entries(self) -> list[Entry]:
        return self.look()[0]

    def _folders(self) -> Iterator[Path]:
        with contextlib.suppress(OSError):
            yield from (Path(each.path) for each in os.scandir(self.folder) if each.is_dir(follow_symlinks=False))

    def _entry(self, path: Path) -> Entry:
        read = read_manifest((path / MANIFEST).read_bytes())
        size = 0
        for name, file in read["files"].items():
            there = (path / name).stat().st_size
            if there != file["bytes"]:
                raise ValueError(f"{name} has {there} bytes instead of {file['bytes']}")
            size += there
        saved = str(read.get("saved"))
        return Entry(path.name, path, read["serial"], read["step"], saved, size, read["world"], read)

    def problem(self, entry: Entry, progress: Callable[[int], None] | None = None) -> str | None:
        """Why a checkpoint is not whole, from a comparison of all its bytes with their hashes; None if it is.
        `progress` is told the bytes compared."""
        pieces = []
        for name, file in entry.manifest["files"].items():
            for place, expected in enumerate(file["pieces"]):
                pieces.append((entry.path / name, place * PIECE, expected))
        try:
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                checks = [pool.submit(_same, *piece) for piece in pieces]
                for (path, _, _), check in zip(pieces, checks, strict=True):
                    if not check.result():
                        return f"{path.name} is not what was written"
                    if progress is not None:
                        progress(PIECE)
        except OSError as error:
            return f"it cannot be read ({error.strerror})"
        return None

    def next_serial(self) -> int:
        return max((entry.serial for entry in self.entries()), default=0) + 1

    def free_name(self, name: str) -> str:
        """`name`, or with +1, +2 … where that is taken: what was saved is never written over."""
        taken = {path.name for path in self._folders()}
        tries = [name, *(f"{name}+{number}" for number in range(1, 10_000))]
        return next(each for each in tries if each not in taken)

    def pin(self, name: str, on: bool) -> None:
        """Keep a checkpoint for good, or no longer. Raises KeyError if there is none of that name."""
        path = self.folder / name
        if not NAME.fullmatch(name) or not (path / MANIFEST).exists():
            raise KeyError(name)
        if on:
            (path / PINNED).touch()
        else:
            (path / PINNED).unlink(missing_ok=True)

    def prune(self, keep: int) -> list[str]:
        """Remove all but the newest `keep` and the pinned; returns their names."""
        old = [entry for entry in self.entries() if not entry.pinned]
        gone = old[: max(0, len(old) - keep)]
        for entry in gone:
            self.remove(entry.path)
        return [entry.name for entry in gone]

    def collect(self, but: str | None = None) -> list[str]:
        """Remove what is incomplete, except the folder `but`; returns the names. Only for who holds the run's lock."""
        gone = [each.name for each in self.look()[1] if each.name != but]
        for name in gone:
            self.remove(self.folder / name)
        return gone

    def remove(self, path: Path) -> None:
        """First its manifest: half a removal leaves something incomplete, never a checkpoint that is not whole."""
        with contextlib.suppress(OSError):
            (path / MANIFEST).unlink()
        shutil.rmtree(path, ignore_errors=True)

    def room(self, needed: int) -> int:
        """Bytes that are missing on the disk for `needed`; 0 if they are there."""
        space = os.statvfs(self.folder)
        return max(0, needed + MARGIN - space.f_bavail * space.f_frsize)


def _same(path: Path, begin: int, expected: str) -> bool:
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        data = bytearray(PIECE)
        view, filled = memoryview(data), 0
        while filled < PIECE and (count := file.readinto(view[filled:])):
            filled += count
    return hash_piece(view[:filled]) == expected
