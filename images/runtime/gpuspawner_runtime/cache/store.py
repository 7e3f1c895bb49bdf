"""The local folder of a cache: room, eviction, and files that appear whole.

FOLDER/index.sqlite    what is here (index.py)
FOLDER/downloads       locks: one name is downloaded by one process at a time
FOLDER/pins            locks: a file that somebody reads is not evicted
FOLDER/objects/ab/...  contents, read-only, complete; with `.part` and `.journal` while they are downloaded
"""

from __future__ import annotations

import hashlib
import shutil
import time
from dataclasses import replace
from pathlib import Path

from gpuspawner_runtime.cache.errors import CacheFull, CacheTooSmall
from gpuspawner_runtime.cache.index import Index, Row
from gpuspawner_runtime.cache.locks import ByteLocks
from gpuspawner_runtime.cache.sizes import show_size

#: What was used within so many seconds goes last, since the other readers of it are probably on their way.
_JUST_USED = 2.0
#: Room that is left on the disk for others.
_MARGIN = 256 * 1000**2


def boot_id() -> str:
    """Tells one start of the machine from another; empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Store:
    """The folder at `folder`, held to `limit` bytes. Made if it is not there; raises OSError if it cannot be."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self.boot = boot_id()
        (folder / "objects").mkdir(parents=True, exist_ok=True, mode=0o700)
        self.downloads = ByteLocks.of(str(folder / "downloads"))
        self.pins = ByteLocks.of(str(folder / "pins"))
        self.index = Index(folder / "index.sqlite")
        with self.downloads.exclusive(0):  # two processes that make the index at once disturb each other
            self.index.total()
        self._collect()

    def place(self, file: str) -> Path:
        """Where a file of the index lies."""
        return self.folder / "objects" / file

    @staticmethod
    def file_for(name: str, token: str) -> str:
        """The file of one version of an object: not to be guessed wrong, and with the object's own ending."""
        key = hashlib.blake2b(f"{name}\0{token}".encode(), digest_size=16).hexdigest()
        return f"{key[:2]}/{key[2:]}-{name.rpartition('/')[2][-100:] or 'object'}"

    def pin(self, file: str) -> None:
        """Keep a file from being evicted while this process lives and has not unpinned it as often."""
        self.pins.hold(ByteLocks.byte(file))

    def unpin(self, file: str) -> None:
        """Undo one `pin`."""
        self.pins.drop(ByteLocks.byte(file))

    def reserve(self, name: str, token: str, size: int) -> Row:
        """Room for a download, promised in the index before the first byte arrives.

        Raises CacheTooSmall if it can never fit, CacheFull if what is in use leaves no room now.
        """
        if size > self.limit:
            raise CacheTooSmall(
                f"{name or 'The object'} has {show_size(size)}, and the cache may hold {show_size(self.limit)} in all: "
                f"give cached() a larger `hot`, at least {size} bytes."
            )
        row = Row(self.file_for(name, token), name, token, size, False, "", None, None, None, 0.0, time.time())
        refused = None
        with self.index.change():
            if not self.index.rows("file = ? AND ready = 0", row.file):
                for old in self.index.rows("name = ? AND ready = 0 OR file = ?", name, row.file):
                    self._unlink(old)
                refused = self._make_room(row)
                if refused is None:
                    self.index.put(row)
        if refused is not None:  # raised here, since what was evicted is gone whether or not that was enough
            raise CacheFull(refused)
        self.place(row.file).parent.mkdir(exist_ok=True, mode=0o700)
        return row

    def _make_room(self, new: Row) -> str | None:
        """Evict what has to go; why that does not suffice, or None."""
        free = shutil.disk_usage(self.folder).free - min(_MARGIN, self.limit // 10)
        total = self.index.total()
        missing = max(total + new.size - self.limit, new.size - free)
        freed = self.evict(missing) if missing > 0 else 0
        if freed >= missing:
            return None
        where = "on the disk" if new.size - free > total + new.size - self.limit else "in the cache"
        return (
            f"No room {where} for {new.name or 'the object'} ({show_size(new.size)}): {show_size(total - freed)} of "
            f"{show_size(self.limit)} are in use. Close what is read, use fewer readers at once, or give cached() "
            "a larger `hot`."
        )

    def evict(self, wanted: int) -> int:
        """Remove files that nobody has open until `wanted` bytes are free, and say how many are.

        What was used least goes first, and of that what was used last: whoever reads a data set that does not fit,
        epoch by epoch, finds the part that stays. (By age alone everything would go just before it is wanted again.)
        Old versions and the remains of dead downloads go before all else.
        """
        uses, now, freed = self.index.uses(), time.time(), 0
        with self.index.change():
            rows = self.index.rows()
            newest: dict[str, float] = {}
            for row in rows:
                newest[row.name] = max(newest.get(row.name, 0.0), row.checked)

            def keep(row: Row) -> tuple[bool, bool, float, float]:
                current = row.ready and row.checked >= newest[row.name]
                return current, row.used > now - _JUST_USED, uses.get(row.name, 0.0), -row.used

            for row in sorted(rows, key=keep):
                if freed >= wanted:
                    break
                if self._remove(row):
                    freed += row.size
        return freed

    def _remove(self, row: Row) -> bool:
        """Remove a file that nobody reads or downloads; whether that was so."""
        locks, byte = (self.pins, ByteLocks.byte(row.file)) if row.ready else (self.downloads, ByteLocks.byte(row.name))
        if not locks.try_exclusive(byte):
            return False
        try:
            self._unlink(row)
        finally:
            locks.release(byte)
        return True

    def _unlink(self, row: Row) -> None:
        for suffix in ("", ".part", ".journal"):
            Path(f"{self.place(row.file)}{suffix}").unlink(missing_ok=True)
        self.index.remove(row.file)

    def publish(self, row: Row, digests: str) -> Row:
        """Make a complete `.part` the file, pinned. After a crash of the machine its content is compared before it is
        used."""
        place = self.place(row.file)
        part = Path(f"{place}.part")
        part.chmod(0o400)
        part.replace(place)
        self.pin(row.file)
        stat = place.stat()
        now = time.time()
        row = replace(
            row,
            ready=True,
            digests=digests,
            inode=stat.st_ino,
            mtime=stat.st_mtime_ns,
            boot=self.boot,
            checked=now,
            used=now,
        )
        self.index.put(row)
        Path(f"{place}.journal").unlink(missing_ok=True)
        return row

    def drop(self, row: Row) -> None:
        """Forget a file whose content is not good; whoever has it open keeps what they have."""
        self.place(row.file).unlink(missing_ok=True)
        self.index.remove(row.file)

    def _collect(self) -> None:
        """Remove files that the index does not know: what is left when it was lost."""
        with self.index.change():
            known = {row.file for row in self.index.rows()}
            for folder in (self.folder / "objects").iterdir():
                for path in folder.iterdir():
                    file = f"{folder.name}/{path.name}"
                    if file not in known and file.removesuffix(".part").removesuffix(".journal") not in known:
                        path.unlink(missing_ok=True)
