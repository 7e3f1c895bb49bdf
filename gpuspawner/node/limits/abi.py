"""The two files through which the node and the processes of a session speak; `abi.h` is the same for the shim.

*Limit file*: the node writes, the session reads. It holds two copies; `generation` says which one counts
(`generation & 1`). A writer fills the other copy, then stores the next generation: one aligned 8-byte store puts
the new limits in force, and a writer that dies half-way leaves the old ones standing. Each copy carries its
generation and a checksum, so a file that was cut, damaged or half-copied is noticed and never believed.

*Usage file*: the processes of a session write. Its content is whatever the session wants it to be; `read_usage`
reads it (never maps it, since a mapped file that is cut short kills its reader) and believes nothing but its size.

Both files have one size for good; sizes, offsets and meanings change only with the version in the header.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import stat
import struct
import tempfile
import uuid as uuids
from dataclasses import dataclass, replace
from pathlib import Path

VERSION = 2
MAX_CARDS = 16
MAX_SLOTS = 1024

LIMIT_MAGIC = b"GPUSLIMT"
LIMIT_SIZE = 4096
_LIMIT_HEADER = struct.Struct("=8sIIQ")
_GENERATION_AT = 16
_COPY_AT = (1024, 2048)
_COPY_HEADER = struct.Struct("=QQII8x")
_ENTRY = struct.Struct("=16sIIQQII")
_COPY_SIZE = _COPY_HEADER.size + MAX_CARDS * _ENTRY.size
_PRESENT = 1
_MIG = 2
_BURST = 4
_FROZEN = 8
_FNV_PRIME = 0x100000001B3
_FNV_MASK = 0xFFFFFFFFFFFFFFFF
_WHOLE = 1000
_EIGHTH = _WHOLE // 8

USAGE_MAGIC = b"GPUSUSAG"
USAGE_SIZE = 471040
_USAGE_HEADER = struct.Struct("=8sIIQ")
_USAGE_UUIDS_AT = 64
_USAGE_OWNERS_AT = 4096
_USAGE_USED_AT = _USAGE_OWNERS_AT + MAX_SLOTS * 8
_USAGE_READ = _USAGE_USED_AT + MAX_CARDS * MAX_SLOTS * 8
_OWNER_PID_MASK = (1 << 22) - 1
_OWNER_RECLAIMING = 1 << 22


class LimitFileError(ValueError):
    """A limit or usage file that cannot be believed. The message names the file and what is wrong with it."""


@dataclass(frozen=True)
class CardLimit:
    """What a session may use of one card.

    `memory_bytes`: bytes of the card's memory, context and module memory included. `context_bytes`: what the shim
    charges for a context where the driver does not tell (bytes; 0: nothing known). `burst`: the session may compute
    with what others leave idle. `frozen`: no new memory, none is shown as free; what runs goes on. `compute`: the
    part of the card's time that may be computed on it now, in thousandths (None: what the eighths give); with `burst`
    the node moves it. `compute_from`: where in each period that part begins, in thousandths of the period.
    """

    uuid: str
    eighths: int
    memory_bytes: int
    context_bytes: int = 0
    burst: bool = False
    frozen: bool = False
    compute: int | None = None
    compute_from: int = 0

    def __post_init__(self) -> None:
        _uuid_bytes(self.uuid)
        if type(self.eighths) is not int or not 0 <= self.eighths <= 8:
            raise ValueError(f"eighths: given {self.eighths!r}, allowed are the integers 0 to 8")
        for field in ("burst", "frozen"):
            if type(getattr(self, field)) is not bool:
                raise ValueError(f"{field}: given {getattr(self, field)!r}, allowed are True and False")
        if self.compute is None:
            object.__setattr__(self, "compute", self.eighths * _EIGHTH)
        for field in ("compute", "compute_from"):
            value = getattr(self, field)
            if type(value) is not int or not 0 <= value <= _WHOLE:
                raise ValueError(f"{field}: given {value!r}, allowed are the integers 0 to {_WHOLE} (thousandths)")
        for field in ("memory_bytes", "context_bytes"):
            value = getattr(self, field)
            if type(value) is not int or not 0 <= value < 1 << 63:
                raise ValueError(f"{field}: given {value!r}, allowed are the integers 0 to 2**63 - 1")


@dataclass(frozen=True)
class ProcessUsage:
    """What one process of a session says that it uses of one card. `pid` is the one inside the session's
    namespace.
    """

    pid: int
    uuid: str
    bytes: int


def _uuid_bytes(text: str) -> tuple[bytes, int]:
    kind, _, rest = text.partition("-") if isinstance(text, str) else ("", "", "")
    try:
        if kind not in ("GPU", "MIG") or len(rest) != 36:
            raise ValueError
        return uuids.UUID(rest).bytes, _MIG if kind == "MIG" else 0
    except ValueError:
        raise ValueError(f"uuid: given {text!r}, allowed is GPU- or MIG- and 8-4-4-4-12 hexadecimal digits") from None


def _uuid_text(raw: bytes, flags: int = 0) -> str:
    return f"{'MIG' if flags & _MIG else 'GPU'}-{uuids.UUID(bytes=raw)}"


def _checksum(copy: bytes) -> int:
    """FNV-1a, 64 bits, over the copy without the 8 bytes of the checksum itself (bytes 8 to 15)."""
    summed = copy[:8] + copy[16:]
    used = summed.rstrip(b"\0")
    value = 0xCBF29CE484222325
    for byte in used:
        value = ((value ^ byte) * _FNV_PRIME) & _FNV_MASK
    # Each zero multiplies only, and most of a copy is zeros: places for cards that the session does not have.
    return value * pow(_FNV_PRIME, len(summed) - len(used), _FNV_MASK + 1) & _FNV_MASK


def _pack_copy(generation: int, entries: list[bytes]) -> bytes:
    body = b"".join(entries).ljust(MAX_CARDS * _ENTRY.size, b"\0")
    sum_ = _checksum(_COPY_HEADER.pack(generation, 0, len(entries), 0) + body)
    return _COPY_HEADER.pack(generation, sum_, len(entries), 0) + body


def _pack_entry(limit: CardLimit | None, raw: bytes, flags: int) -> bytes:
    if limit is None:
        return _ENTRY.pack(raw, 0, flags & _MIG, 0, 0, 0, 0)
    flags = flags & _MIG | _PRESENT | (_BURST if limit.burst else 0) | (_FROZEN if limit.frozen else 0)
    return _ENTRY.pack(
        raw, limit.eighths, flags, limit.memory_bytes, limit.context_bytes, limit.compute, limit.compute_from
    )


def _entries(content: bytes, path: Path) -> tuple[int, list[tuple[bytes, int, CardLimit | None]]]:
    """The generation and, by position, each card's uuid, flags and limit (None: no longer the session's)."""
    if len(content) != LIMIT_SIZE:
        raise LimitFileError(f"limit file {path}: {len(content)} bytes, expected {LIMIT_SIZE}")
    magic, version, size, generation = _LIMIT_HEADER.unpack_from(content)
    if magic != LIMIT_MAGIC or size != LIMIT_SIZE:
        raise LimitFileError(f"limit file {path}: not a limit file")
    if version != VERSION:
        raise LimitFileError(f"limit file {path}: of version {version}, expected {VERSION}")
    at = _COPY_AT[generation & 1]
    copy = content[at : at + _COPY_SIZE]
    copy_generation, sum_, count, _ = _COPY_HEADER.unpack_from(copy)
    if generation == 0 or copy_generation != generation or sum_ != _checksum(copy) or count > MAX_CARDS:
        raise LimitFileError(f"limit file {path}: torn or damaged")
    found: list[tuple[bytes, int, CardLimit | None]] = []
    for position in range(count):
        at = _COPY_HEADER.size + position * _ENTRY.size
        raw, eighths, flags, memory, context, compute, start = _ENTRY.unpack_from(copy, at)
        burst, frozen, limit = bool(flags & _BURST), bool(flags & _FROZEN), None
        if flags & _PRESENT:
            uuid = _uuid_text(raw, flags)
            try:
                limit = CardLimit(uuid, eighths, memory, context, burst, frozen, compute, start)
            except ValueError as error:
                raise LimitFileError(f"limit file {path}: {error}") from error
        found.append((raw, flags, limit))
    return generation, found


def read_limits(path: Path | str) -> list[CardLimit]:
    """The limits in force. Raises `LimitFileError` for a damaged file, `OSError` for one that cannot be read."""
    path = Path(path)
    for _ in range(100):  # a read can meet two writes in a row; one copy of every file is whole between them
        try:
            _, found = _entries(path.read_bytes(), path)
            return [limit for _, _, limit in found if limit is not None]
        except LimitFileError as error:
            problem = error
    raise problem


def write_limits(path: Path | str, limits: list[CardLimit]) -> None:
    """Put `limits` in force for the session that reads `path`; made if missing, changed in place otherwise.

    Cards keep their position in the file for good, since usage is counted by position. A card that is left out gets
    no memory any more. Raises `ValueError` for a card named twice or more than 16 cards over the file's life.
    """
    path = Path(path)
    wanted = {_uuid_bytes(limit.uuid): limit for limit in limits}
    if len(wanted) != len(limits):
        raise ValueError(f"limits: given {len(limits)} limits for {len(wanted)} cards, allowed is one for each card")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        _create(path, wanted)
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            generation, found = _entries(os.pread(fd, LIMIT_SIZE + 1, 0), path)
        except LimitFileError:
            # Another inode takes its place, and whoever has mapped this one (a shim of another version) believes it
            # no longer.
            os.pwrite(fd, bytes(8), _GENERATION_AT)
            _create(path, wanted)
            return
        _put_in_force(fd, generation + 1, _place([(raw, flags) for raw, flags, _ in found], wanted))
    finally:
        os.close(fd)


def move_compute(path: Path | str, parts: dict[str, tuple[int, int]]) -> None:
    """Change `compute` and `compute_from` of the cards named by uuid, and nothing else; others stay as they are.

    Raises `LimitFileError` for a damaged file, `OSError` for one that is not there, `ValueError` for bad values.
    """
    path = Path(path)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        generation, found = _entries(os.pread(fd, LIMIT_SIZE + 1, 0), path)
        entries, changed = [], False
        for raw, flags, limit in found:
            new = limit
            if limit is not None and limit.uuid in parts:
                compute, start = parts[limit.uuid]
                new = replace(limit, compute=compute, compute_from=start)
            changed |= new != limit
            entries.append(_pack_entry(new, raw, flags))
        if changed:
            _put_in_force(fd, generation + 1, entries)
    finally:
        os.close(fd)


def _put_in_force(fd: int, generation: int, entries: list[bytes]) -> None:
    with mmap.mmap(fd, LIMIT_SIZE) as view:
        at = _COPY_AT[generation & 1]
        view[at : at + _COPY_SIZE] = _pack_copy(generation, entries)
        word = ctypes.c_uint64.from_buffer(view, _GENERATION_AT)
        word.value = generation  # the one store by which the new limits are in force
        del word


def _place(known: list[tuple[bytes, int]], wanted: dict[tuple[bytes, int], CardLimit]) -> list[bytes]:
    remaining = dict(wanted)
    entries = []
    for raw, flags in known:
        limit = remaining.pop((raw, flags & _MIG), None)
        entries.append(_pack_entry(limit, raw, flags))
    entries += [_pack_entry(limit, raw, kind) for (raw, kind), limit in remaining.items()]
    if len(entries) > MAX_CARDS:
        raise ValueError(f"limits: given {len(entries)} cards over the file's life, allowed are {MAX_CARDS}")
    return entries


def _create(path: Path, wanted: dict[tuple[bytes, int], CardLimit]) -> None:
    content = bytearray(LIMIT_SIZE)
    _LIMIT_HEADER.pack_into(content, 0, LIMIT_MAGIC, VERSION, LIMIT_SIZE, 1)
    copy = _pack_copy(1, _place([], wanted))
    content[_COPY_AT[1] : _COPY_AT[1] + _COPY_SIZE] = copy
    _replace(path, bytes(content), 0o644)


def _replace(path: Path, content: bytes, mode: int, uid: int = -1, gid: int = -1) -> None:
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(fd, mode)
            if uid != -1 or gid != -1:
                os.fchown(fd, uid, gid)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def create_usage(path: Path | str, uid: int | None = None, gid: int | None = None) -> None:
    """Make the session's empty usage file, owned by `uid`:`gid`. A file that already has the right size is left
    alone.
    """
    path = Path(path)
    try:
        status = path.lstat()
    except FileNotFoundError:
        pass
    else:
        if stat.S_ISREG(status.st_mode) and status.st_size == USAGE_SIZE:
            return
    content = bytearray(USAGE_SIZE)
    _USAGE_HEADER.pack_into(content, 0, USAGE_MAGIC, VERSION, USAGE_SIZE, 0)
    _replace(path, bytes(content), 0o600, -1 if uid is None else uid, -1 if gid is None else gid)


def read_usage(path: Path | str) -> list[ProcessUsage]:
    """What the session's processes say they use, one row per process and card, rows of 0 bytes left out.

    Hostile-safe: any content gives some rows (at most 16 for each of 1024 processes), never more work than that.
    Raises `LimitFileError` for what is not a usage file, `OSError` for what cannot be read.
    """
    path = Path(path)
    looked_at = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # opens nothing that minds being opened
    try:
        status = os.fstat(looked_at)
        # one with a second name may be somebody else's
        if not stat.S_ISREG(status.st_mode) or status.st_size != USAGE_SIZE or status.st_nlink != 1:
            raise LimitFileError(
                f"usage file {path}: {status.st_size} bytes, {status.st_nlink} names, "
                f"expected a plain file of {USAGE_SIZE} with one name"
            )
        fd = os.open(f"/proc/self/fd/{looked_at}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(looked_at)
    try:
        content = os.pread(fd, _USAGE_READ, 0)
    finally:
        os.close(fd)
    if len(content) != _USAGE_READ:
        raise LimitFileError(f"usage file {path}: cut short while it was read")
    magic, version, size, _ = _USAGE_HEADER.unpack_from(content)
    if magic != USAGE_MAGIC or size != USAGE_SIZE:
        raise LimitFileError(f"usage file {path}: not a usage file")
    if version != VERSION:
        raise LimitFileError(f"usage file {path}: of version {version}, expected {VERSION}")
    names = [_uuid_text(content[at : at + 16]) for at in range(_USAGE_UUIDS_AT, _USAGE_UUIDS_AT + MAX_CARDS * 16, 16)]
    owners = memoryview(content)[_USAGE_OWNERS_AT:_USAGE_USED_AT].cast("Q")
    used = memoryview(content)[_USAGE_USED_AT:].cast("Q")
    rows = []
    for slot, owner in enumerate(owners):
        if owner == 0 or owner & _OWNER_RECLAIMING:
            continue
        for card, name in enumerate(names):
            amount = used[card * MAX_SLOTS + slot]
            if amount:
                rows.append(ProcessUsage(owner & _OWNER_PID_MASK, name, amount))
    return rows
