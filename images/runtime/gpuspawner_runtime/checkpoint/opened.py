"""A file that is there while a run is open, and says how far it is: left over, the run was killed, and where."""

from __future__ import annotations

import contextlib
import mmap
import struct
from pathlib import Path

_LAYOUT = struct.Struct("<Qd")


class Opened:
    """The file `opened` of a run: steps done and seconds trained, stored in shared memory at each step, so that
    they outlive a kill and cost no system call."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "opened"
        self._map: mmap.mmap | None = None

    def left(self) -> bool:
        """Whether the last one who trained was killed."""
        return self._path.exists()

    def reached(self) -> tuple[int, float] | None:
        """Steps and seconds that whoever was killed had done; None if nobody knows."""
        with contextlib.suppress(OSError, struct.error):
            steps, seconds = _LAYOUT.unpack(self._path.read_bytes())
            return int(steps), float(seconds)
        return None

    def open(self, steps: int, seconds: float) -> None:
        """The run is open from now on. A disk without room for the file is no reason to stop."""
        with contextlib.suppress(OSError), self._path.open("w+b") as file:
            file.write(_LAYOUT.pack(steps, seconds))
            file.flush()
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    def count(self, steps: int, seconds: float) -> None:
        """So far it is now."""
        if self._map is not None:
            _LAYOUT.pack_into(self._map, 0, steps, seconds)

    def close(self) -> None:
        """The run is closed in order."""
        if self._map is not None:
            self._map.close()
            self._map = None
        self._path.unlink(missing_ok=True)
