"""The share that this session has now, as the node writes it: the limit file, read-only.

The format is `docs/reference/limit-file.md`, version 2. Without a file (no hub, another machine) everything is None.
"""

from __future__ import annotations

import mmap
import os
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path

PLACE = Path("/run/gpuspawner/limits/limit")
_SIZE = 4096
_HEADER = struct.Struct("=8sIIQ")
_GENERATION = struct.Struct("=Q")
_GENERATION_AT = 16
_COPY_AT = (1024, 2048)
_COPY = struct.Struct("=QQII8x")
_ENTRY = struct.Struct("=16sIIQQII")
_COPY_SIZE = _COPY.size + 16 * _ENTRY.size
_PRESENT, _MIG, _BURST, _FROZEN = 1, 2, 4, 8
_FNV_START, _FNV_PRIME, _WORD = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


@dataclass(frozen=True)
class Share:
    """What the session may use of one card: its NVML uuid, eighths (0 to 8), memory in bytes."""

    uuid: str
    eighths: int
    memory_bytes: int
    burst: bool = False
    frozen: bool = False


class LimitFile:
    """A limit file, mapped. `generation` costs less than a microsecond, so it can be asked at every step."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if there is none, ValueError if it is not a limit file of version 2."""
        self.path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE, prot=mmap.PROT_READ)
        magic, version, size, _ = _HEADER.unpack_from(self._map, 0)
        if magic != b"GPUSLIMT" or version != 2 or size != _SIZE:
            raise ValueError(f"{path} is not a limit file of version 2")

    @property
    def generation(self) -> int:
        """Changes with every resize, and where computing time is lent, more often."""
        return int(_GENERATION.unpack_from(self._map, _GENERATION_AT)[0])

    def shares(self) -> tuple[Share, ...] | None:
        """What is in force now, by card; None if no sound copy is found (the node writes just now, or never does)."""
        for _ in range(3):
            generation = self.generation
            at = _COPY_AT[generation & 1]
            copy = self._map[at : at + _COPY_SIZE]
            its, checksum, count, _ = _COPY.unpack_from(copy, 0)
            if its == generation and count <= 16 and checksum == _fnv(copy[:8] + copy[16:]):
                entries = [_ENTRY.unpack_from(copy, _COPY.size + n * _ENTRY.size) for n in range(count)]
                return tuple(_share(entry) for entry in entries if entry[2] & _PRESENT)
        return None


def find() -> LimitFile | None:
    """This session's limit file, or None outside of one."""
    given = os.environ.get("GPUSPAWNER_LIMITS")
    for place in [Path(given)] if given else [PLACE]:
        try:
            return LimitFile(place)
        except (OSError, ValueError):
            continue
    return None


def _share(entry: tuple[bytes, int, int, int, int, int, int]) -> Share:
    raw, eighths, flags, memory = entry[:4]
    name = ("MIG-" if flags & _MIG else "GPU-") + str(uuid.UUID(bytes=raw))
    return Share(name, eighths, memory, bool(flags & _BURST), bool(flags & _FROZEN))


def _fnv(data: bytes) -> int:
    """The checksum of a copy: FNV-1a, 64 bits."""
    value = _FNV_START
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & _WORD
    return value
