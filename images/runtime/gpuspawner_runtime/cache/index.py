"""What a cache folder holds: a small SQLite file that all processes share.

It is a cache's index, so losing it loses nothing but downloads: it is written without fsync, and a damaged one is
begun anew.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    file TEXT PRIMARY KEY, name TEXT NOT NULL, token TEXT NOT NULL, size INTEGER NOT NULL, ready INTEGER NOT NULL,
    digests TEXT NOT NULL, inode INTEGER, mtime INTEGER, boot TEXT, checked REAL NOT NULL, used REAL NOT NULL);
CREATE INDEX IF NOT EXISTS objects_name ON objects (name);
CREATE TABLE IF NOT EXISTS uses (name TEXT PRIMARY KEY, uses REAL NOT NULL);
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value TEXT NOT NULL);
PRAGMA user_version = 1;
"""
_COLUMNS = "file, name, token, size, ready, digests, inode, mtime, boot, checked, used"
#: Uses are halved after so many for each cached object, so that what was popular last week gives way.
_AGE_AFTER = 10


@dataclass(frozen=True)
class Row:
    """One version of one object. Sizes in bytes, times in seconds since 1970, `mtime` in nanoseconds."""

    file: str
    name: str
    token: str
    size: int
    ready: bool
    digests: str
    inode: int | None
    mtime: int | None
    boot: str | None
    checked: float
    used: float


class Index:
    """The index at `path`. One connection for each process; all methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._pid = -1
        self._db: sqlite3.Connection | None = None
        self._inherited: list[sqlite3.Connection] = []
        self._depth = 0
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        if self._db is not None:  # closing it would disturb the parent's locks, so it is only put aside
            self._inherited.append(self._db)
        self._db, self._depth = None, 0

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            try:
                self._db = self._connect()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
                    raise
                for suffix in ("", "-wal", "-shm"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
                self._db = self._connect()
        return self._db

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA synchronous = OFF")
        if db.execute("PRAGMA user_version").fetchone()[0] != 1:
            db.executescript("PRAGMA journal_mode = WAL; BEGIN IMMEDIATE;" + _SCHEMA + "COMMIT;")
        return db

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """One change that all processes see whole or not at all, and that waits for other processes' changes."""
        with self._lock:
            db = self._connection()
            if self._depth == 0:
                db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield db
            except BaseException:
                self._depth -= 1
                if self._depth == 0:
                    db.execute("ROLLBACK")
                raise
            self._depth -= 1
            if self._depth == 0:
                db.execute("COMMIT")

    def rows(self, where: str = "1", *values: object) -> list[Row]:
        """The rows for which a condition on the columns holds."""
        with self._lock:
            found = self._connection().execute(f"SELECT {_COLUMNS} FROM objects WHERE {where}", values).fetchall()
        return [replace(Row(*row), ready=bool(row[4])) for row in found]

    def newest(self, name: str) -> Row | None:
        """The version of an object that was last known to be the store's, if it is here."""
        found = self.rows("name = ? AND ready = 1 ORDER BY checked DESC LIMIT 1", name)
        return found[0] if found else None

    def put(self, row: Row) -> None:
        """Add a row, or replace the one of the same file."""
        values = (*vars(row).values(),)
        with self.change() as db:
            db.execute(f"INSERT OR REPLACE INTO objects ({_COLUMNS}) VALUES ({', '.join('?' * len(values))})", values)

    def remove(self, file: str) -> None:
        """Forget a file."""
        with self.change() as db:
            db.execute("DELETE FROM objects WHERE file = ?", (file,))

    def checked(self, file: str, boot: str) -> None:
        """The store says now that this is the newest version; its content was good in this boot of the machine."""
        with self.change() as db:
            db.execute("UPDATE objects SET checked = ?, boot = ? WHERE file = ?", (time.time(), boot, file))

    def total(self) -> int:
        """Bytes cached and promised to downloads under way."""
        with self._lock:
            found = self._connection().execute("SELECT coalesce(sum(size), 0) FROM objects").fetchone()
        return int(found[0])

    def used(self, counts: Mapping[str, int]) -> None:
        """Count uses of objects, by name."""
        now = time.time()
        with self.change() as db:
            for name, count in counts.items():
                db.execute(
                    "INSERT INTO uses VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET uses = uses + excluded.uses",
                    (name, count),
                )
                db.execute("UPDATE objects SET used = ? WHERE name = ?", (now, name))
            cached = db.execute("SELECT count(*) FROM objects").fetchone()[0]
            since = float(self._get(db, "uses")) + sum(counts.values())
            if since > _AGE_AFTER * max(cached, 100):
                db.execute("UPDATE uses SET uses = uses / 2")
                db.execute("DELETE FROM uses WHERE uses < 0.5")
                since = 0.0
            db.execute("INSERT OR REPLACE INTO state VALUES ('uses', ?)", (str(since),))

    def uses(self) -> dict[str, float]:
        """How often each object was used, older uses counting less."""
        with self._lock:
            return dict(self._connection().execute("SELECT name, uses FROM uses").fetchall())

    @staticmethod
    def _get(db: sqlite3.Connection, key: str) -> str:
        found = db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return found[0] if found else "0"
