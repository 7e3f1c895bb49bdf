"""The file of a parked session: one file that appears whole, with a hash for every 16 MiB of it.

    8 bytes   "GSPARK\\x01\\n"
    blocks    the pickled variables, then buffers (tensors, arrays), each at a multiple of 64 bytes
    manifest  JSON: what is in the file and where, and the SHA-256 of each 16 MiB before it
    footer    48 bytes: offset and length of the manifest, and its HMAC-SHA256 by the user's own key

The key makes the difference between a file that this user parked and one that came from elsewhere: loading runs code.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import struct
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuspawner_runtime.errors import RuntimeFault

MAGIC = b"GSPARK\x01\n"
ALIGN = 64
_CHUNK = 16 * 1024 * 1024
_FOOTER = struct.Struct("<QQ32s")
_THREADS = 4
_MANIFEST_LIMIT = 256 * 1024 * 1024


class ParkError(RuntimeFault):
    """A session that cannot be parked or brought back; the sentence says why."""

    def __init__(self, message: str, code: str = "park") -> None:
        super().__init__(message, code=code)


@dataclass(frozen=True)
class Block:
    """Bytes of the file."""

    offset: int
    size: int


def state_folder() -> Path:
    """Where parked sessions and the key lie."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "gpuspawner-runtime" / "parked"


def _key(folder: Path) -> bytes:
    """This user's key, made at the first use; mode 0600."""
    path = folder / "key"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        part = folder / f".key.{secrets.token_hex(8)}"
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(fd, secrets.token_bytes(32))
        finally:
            os.close(fd)
        try:
            os.link(part, path)  # of two who make one at once, the first wins
        except FileExistsError:
            pass
        finally:
            part.unlink()
    _owned(path)
    return path.read_bytes()


def _owned(path: Path) -> os.stat_result:
    """Its status, if it is a plain file that only this user can have written. Raises ParkError."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise ParkError(f"{path} is no plain file.", "not-yours")
    if found.st_uid != os.geteuid():
        raise ParkError(
            f"{path} belongs to another user (uid {found.st_uid}): loading it would run their code.", "not-yours"
        )
    if found.st_mode & 0o022:
        raise ParkError(
            f"Others may write {path}: loading it would run their code. chmod go-w, if you trust it.", "not-yours"
        )
    return found


def write(path: Path, head: bytes, buffers: Sequence[memoryview], manifest: dict[str, Any]) -> int:
    """Write the file and rename it to `path`; its size. Raises ParkError if the disk has no room, OSError."""
    places, end = [], len(MAGIC) + len(head)
    for buffer in buffers:
        start = -(-end // ALIGN) * ALIGN
        places.append(Block(start, buffer.nbytes))
        end = start + buffer.nbytes
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    free = os.statvfs(path.parent).f_bavail * os.statvfs(path.parent).f_frsize
    if end > free:
        raise ParkError(
            f"The session has {end / 1e6:.0f} MB, and there are {free / 1e6:.0f} MB free at {path.parent}.", "disk"
        )
    pieces = [(0, memoryview(MAGIC + head)), *((place.offset, one) for place, one in zip(places, buffers, strict=True))]
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, end)
        with ThreadPoolExecutor(_THREADS) as pool:
            hashes = list(
                pool.map(lambda start: _write_chunk(fd, start, min(end, start + _CHUNK), pieces), range(0, end, _CHUNK))
            )
        body = {**manifest, "format": 1, "head": len(head), "end": end, "hashes": hashes}
        body["buffers"] = [[place.offset, place.size] for place in places]
        text = json.dumps(body).encode()
        seal = hmac.digest(_key(state_folder()), text, "sha256")
        os.lseek(fd, end, os.SEEK_SET)
        _write_all(fd, text + _FOOTER.pack(end, len(text), seal))
        os.fsync(fd)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return path.stat().st_size


def _write_chunk(fd: int, start: int, end: int, pieces: Sequence[tuple[int, memoryview]]) -> str:
    """Write what of the pieces lies in the chunk, zeros between; the hash of the chunk."""
    digest, at = hashlib.sha256(), start
    for offset, piece in pieces:
        first, last = max(start, offset), min(end, offset + piece.nbytes)
        if first >= last:
            continue
        digest.update(bytes(first - at))
        data = piece[first - offset : last - offset]
        digest.update(data)
        while data:
            written = os.pwrite(fd, data, first)
            data, first = data[written:], first + written
        at = last
    digest.update(bytes(end - at))
    return digest.hexdigest()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read(path: Path, *, foreign: bool) -> tuple[dict[str, Any], memoryview, list[memoryview]]:
    """Manifest, pickled variables and buffers of a file, all compared with their hashes first.

    Raises ParkError if the file is not this user's, not complete, damaged, or (without `foreign`) not sealed with this
    user's key.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = _owned(path).st_size
        if os.fstat(fd).st_ino != path.lstat().st_ino:
            raise ParkError(f"{path} was replaced while it was opened. Try again.")
        manifest = _manifest(fd, size, path, foreign=foreign)
        end = int(manifest["end"])
        # each buffer by itself, so that deleting one variable later frees its memory
        head = _room(len(MAGIC) + int(manifest["head"]))
        buffers = [_room(length) for _, length in manifest["buffers"]]
        pieces = [(0, head), *zip((offset for offset, _ in manifest["buffers"]), buffers, strict=True)]
        chunks = [(start, min(end, start + _CHUNK)) for start in range(0, end, _CHUNK)]
        with ThreadPoolExecutor(_THREADS) as pool:
            hashes = list(pool.map(lambda chunk: _read_chunk(fd, chunk[0], chunk[1], pieces), chunks))
        wrong = [
            start for (start, _), got, wanted in zip(chunks, hashes, manifest["hashes"], strict=True) if got != wanted
        ]
        if wrong:
            raise ParkError(f"{path} is damaged at {wrong[0]} bytes. Nothing was loaded.", "damaged")
    finally:
        os.close(fd)
    if bytes(head[: len(MAGIC)]) != MAGIC:
        raise ParkError(f"{path} is no parked session.", "damaged")
    return manifest, head[len(MAGIC) :], buffers


def _room(size: int) -> memoryview:
    numpy = sys.modules.get("numpy")  # does not spend time on zeros
    return memoryview(numpy.empty(size, "u1") if numpy is not None else bytearray(size))


def _manifest(fd: int, size: int, path: Path, *, foreign: bool) -> dict[str, Any]:
    footer = os.pread(fd, _FOOTER.size, max(0, size - _FOOTER.size))
    if len(footer) != _FOOTER.size:
        raise ParkError(f"{path} is no parked session.", "damaged")
    offset, length, seal = _FOOTER.unpack(footer)
    if offset + length + _FOOTER.size != size or length > _MANIFEST_LIMIT:
        raise ParkError(f"{path} is no complete parked session.", "damaged")
    text = os.pread(fd, length, offset)
    if not foreign and not hmac.compare_digest(seal, hmac.digest(_key(state_folder()), text, "sha256")):
        raise ParkError(
            f"{path} was not parked by you here, or was changed: loading it runs whatever code is in it. If you know "
            "where it is from and trust that, say unpark(..., foreign=True).",
            "foreign",
        )
    try:
        manifest: dict[str, Any] = json.loads(text)
        if manifest["format"] != 1 or manifest["end"] != offset or len(manifest["hashes"]) != -(-offset // _CHUNK):
            raise ValueError("another format")
        if any(not 0 <= start <= start + count <= offset for start, count in manifest["buffers"]):
            raise ValueError("a buffer outside of the file")
    except (ValueError, KeyError, TypeError) as error:
        raise ParkError(f"{path} is no parked session that this version reads: {error}.", "damaged") from error
    return manifest


def _read_chunk(fd: int, start: int, end: int, pieces: Sequence[tuple[int, memoryview]]) -> str:
    """Read the chunk into the pieces; its hash."""
    digest, at = hashlib.sha256(), start
    for offset, piece in pieces:
        first, last = max(start, offset), min(end, offset + piece.nbytes)
        if first >= last:
            continue
        digest.update(os.pread(fd, first - at, at))
        data = rest = piece[first - offset : last - offset]
        while rest and (count := os.preadv(fd, [rest], first)):
            rest, first = rest[count:], first + count
        digest.update(data[: data.nbytes - rest.nbytes])
        at = last
    digest.update(os.pread(fd, end - at, at))
    return digest.hexdigest()
