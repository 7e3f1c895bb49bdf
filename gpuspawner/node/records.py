"""The agent's own record of what is in force on this machine's cards, on disk before it is applied."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gpuspawner.errors import Unavailable

State = Literal["live", "held"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS contexts (card TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS records (
    session TEXT PRIMARY KEY,
    user TEXT NOT NULL,
    cards TEXT NOT NULL,
    eighths INTEGER NOT NULL CHECK (eighths BETWEEN 0 AND 8),
    state TEXT NOT NULL CHECK (state IN ('live', 'held')),
    launched INTEGER NOT NULL,
    created REAL NOT NULL,
    pids TEXT NOT NULL DEFAULT '[]',
    burst INTEGER NOT NULL DEFAULT 0,
    over INTEGER NOT NULL DEFAULT 0
);
"""


_COLUMNS = "session, user, cards, eighths, state, launched, created, pids, burst, over"


@dataclass(frozen=True)
class Record:
    """What a session has in force: `eighths` (1 to 8) on each of `cards` (uuids), or 0 and no card.

    `held`: the session has ended, but the driver still shows memory of it, so that its eighths are not free.
    `launched`: a process of it was seen. `created` is in seconds since the epoch. `pids`: processes that
    the driver had shown for it when it ended, each with its start time (clock ticks since boot). `burst`: it may
    compute with what others leave idle. `over`: eighths beyond those in force that nobody else may have yet, since the
    session still uses them.
    """

    session: str
    user: str
    cards: tuple[str, ...]
    eighths: int
    state: State
    launched: bool
    created: float
    pids: tuple[tuple[int, int], ...] = ()
    burst: bool = False
    over: int = 0

    @property
    def charged(self) -> int:
        """Eighths of each card that nobody else may have."""
        return self.eighths + self.over


class Records:
    """All records, in memory and in SQLite. Each change is on disk when the method returns.

    The caller serialises access.
    """

    def __init__(self, path: Path) -> None:
        """Raises Unavailable, naming the file, where it cannot be opened, read or believed."""
        self._records: dict[str, Record] = {}
        self._by_card: defaultdict[str, dict[str, Record]] = defaultdict(dict)
        try:
            self.database = sqlite3.connect(path, check_same_thread=False)
            self.database.execute("PRAGMA journal_mode = WAL")
            self.database.execute("PRAGMA synchronous = FULL")
            problem = self.database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if problem != "ok":
                raise ValueError(problem)
            self.database.executescript(_SCHEMA)
            self._allow_no_card()
            self._add_columns()
            for row in self.database.execute(f"SELECT {_COLUMNS} FROM records"):
                session, user, cards, eighths, state, launched, created, pids, burst, over = row
                record = Record(
                    session,
                    user,
                    tuple(json.loads(cards)),
                    eighths,
                    state,
                    bool(launched),
                    created,
                    _processes(json.loads(pids)),
                    bool(burst),
                    over,
                )
                self._know(record)
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise Unavailable(
                f"The node's records in {path} cannot be used: {error}. If the file is damaged, move it and those "
                "beside it (-wal, -shm) away: running sessions are then found again by their limits.",
                code="storage",
            ) from error

    def _allow_no_card(self) -> None:
        """Records made before sessions without a card refuse 0. SQLite changes a CHECK by its text alone."""
        before, now = "BETWEEN 1 AND 8", "BETWEEN 0 AND 8"
        found = self.database.execute("SELECT sql FROM sqlite_master WHERE name = 'records'").fetchone()[0]
        if before not in found:
            return
        version = self.database.execute("PRAGMA schema_version").fetchone()[0]
        self.database.execute("PRAGMA writable_schema = ON")
        with self.database:
            changed = found.replace(before, now)
            self.database.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'records'", (changed,))
            self.database.execute(f"PRAGMA schema_version = {version + 1}")
        self.database.execute("PRAGMA writable_schema = OFF")

    def _add_columns(self) -> None:
        """Records made before there was burst have none; before forced shrinks were charged, nothing was over."""
        found = {row[1] for row in self.database.execute("PRAGMA table_info(records)")}
        for column in ("burst", "over"):
            if column not in found:
                with self.database:
                    self.database.execute(f"ALTER TABLE records ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")

    def get(self, session: str) -> Record | None:
        """The record of a session, if there is one."""
        return self._records.get(session)

    def all(self) -> list[Record]:
        """Every record, live and held."""
        return list(self._records.values())

    def on(self, card: str) -> list[Record]:
        """Every record, live and held, of a session on a card."""
        return list(self._by_card.get(card, {}).values())

    def _know(self, record: Record) -> None:
        before = self._records.get(record.session)
        for card in before.cards if before is not None else ():
            self._by_card[card].pop(record.session, None)
        self._records[record.session] = record
        for card in record.cards:
            self._by_card[card][record.session] = record

    def _forget(self, session: str) -> None:
        before = self._records.pop(session, None)
        for card in before.cards if before is not None else ():
            self._by_card[card].pop(session, None)

    def put(self, record: Record) -> None:
        """Write a record, new or changed."""
        with self.database:
            self.database.execute(
                f"INSERT OR REPLACE INTO records ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    record.session,
                    record.user,
                    json.dumps(record.cards),
                    record.eighths,
                    record.state,
                    int(record.launched),
                    record.created,
                    json.dumps(record.pids),
                    int(record.burst),
                    record.over,
                ),
            )
        self._know(record)

    def change(self, session: str, **changes: object) -> Record:
        """Write a record with some fields changed."""
        record = replace(self._records[session], **changes)  # type: ignore[arg-type]
        self.put(record)
        return record

    def remove(self, session: str) -> None:
        """Drop a record: its eighths are free."""
        with self.database:
            self.database.execute("DELETE FROM records WHERE session = ?", (session,))
        self._forget(session)

    def charged(self, without: str | None = None) -> Counter[str]:
        """Eighths taken on each card, by uuid, leaving one session out of the sum."""
        taken: Counter[str] = Counter()
        for record in self._records.values():
            if record.session != without:
                for card in record.cards:
                    taken[card] += record.charged
        return taken

    def context_bytes(self) -> dict[str, int]:
        """What a context was last measured to take, in bytes by card uuid."""
        return dict(self.database.execute("SELECT card, bytes FROM contexts"))

    def keep_context_bytes(self, measured: Mapping[str, int]) -> None:
        """Remember measurements for a start at which a card is too full for one."""
        with self.database:
            self.database.executemany("INSERT OR REPLACE INTO contexts VALUES (?, ?)", measured.items())

    def close(self) -> None:
        """Close the database."""
        self.database.close()


def _processes(pids: list[int | list[int]]) -> tuple[tuple[int, int], ...]:
    """Version 0.1 wrote pids without start times; such a process is known by its pid once it has ended."""
    return tuple((each, 0) if isinstance(each, int) else (each[0], each[1]) for each in pids)
