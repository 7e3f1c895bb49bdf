"""Reads and writes of the queue's rows. All of them are held in memory too, by whoever leads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Engine, Table, delete, insert, select, update

from gpuspawner.queue.forecast import WINDOW, Record
from gpuspawner.queue.rules import CLASSES
from gpuspawner.service.store import Asked
from gpuspawner.service.tables import QueueRow, SessionRow, WaitRow

_QUEUE, _WAITS = cast(Table, QueueRow.__table__), cast(Table, WaitRow.__table__)
_SESSIONS = cast(Table, SessionRow.__table__)
_ALL = select(_QUEUE).order_by(_QUEUE.c.since_ms, _QUEUE.c.id)


@dataclass(frozen=True)
class Wish:
    """What a start says of the queue. `wait`: whether to wait where there is no room. `kind`: its class; None for its
    user's default. `run_seconds`: how long it will run; `deadline_ms`: when it must be done."""

    wait: bool = False
    kind: str | None = None
    run_seconds: float | None = None
    deadline_ms: int | None = None

    def asked(self) -> Asked:
        """What the session's row keeps of it."""
        return Asked(run_seconds=self.run_seconds, deadline_ms=self.deadline_ms)


@dataclass(slots=True)
class Entry:
    """A row of the queue in memory, as `QueueRow` describes it."""

    id: str
    user: str
    server: str
    state: str
    kind: str
    share: str
    since_ms: int
    card: str | None = None
    burst: bool = False
    environment: str | None = None
    run_seconds: float | None = None
    deadline_ms: int | None = None
    forecast_seconds: float | None = None
    taken_by: str | None = None
    taken_ms: int | None = None
    changed_by: str | None = None
    changed_why: str | None = None


class Entries:
    """The queue's rows by session. Not thread-safe but for `get`: whoever changes them holds the clerk's lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rows: dict[str, Entry] = {}
        self._waiting: dict[str, Entry] = {}
        self._by_server: dict[tuple[str, str], str] = {}
        #: When the newest began to wait, milliseconds.
        self.newest_ms = 0

    def recall(self) -> None:
        """Read all rows, as another service or an earlier one left them."""
        self._rows, self._waiting, self._by_server = {}, {}, {}
        for row in self.stored():
            self._keep(row)

    def stored(self) -> list[Entry]:
        """The rows as they are in the database, those who came first before the others."""
        with self._engine.connect() as connection:
            return [Entry(**found._mapping) for found in connection.execute(_ALL)]

    def record(self) -> Record:
        """What became of the latest forecasts, and how long the latest sessions ran."""
        record = Record()
        with self._engine.connect() as connection:
            for kind in CLASSES:
                own = select(_WAITS).where(_WAITS.c.kind == kind).order_by(_WAITS.c.id.desc()).limit(WINDOW)
                for row in reversed(connection.execute(own).all()):
                    record.waited(kind, row.forecast_seconds, row.waited_seconds)
            ended = select(_SESSIONS.c.created_ms, _SESSIONS.c.ended_ms).where(_SESSIONS.c.ended_ms.is_not(None))
            for begin, end in connection.execute(ended.order_by(_SESSIONS.c.ended_ms.desc()).limit(WINDOW)):
                record.ran((end - begin) / 1000)
        return record

    def get(self, session: str) -> Entry | None:
        """A session's row."""
        return self._rows.get(session)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._rows.values()))

    def __len__(self) -> int:
        return len(self._rows)

    def waiting(self) -> list[Entry]:
        """Who waits for a place."""
        return list(self._waiting.values())

    @property
    def anybody(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def _keep(self, row: Entry) -> None:
        self._rows[row.id] = row
        self.newest_ms = max(self.newest_ms, row.since_ms)
        if row.state == "waiting":
            self._waiting[row.id] = row
            self._by_server[row.user, row.server] = row.id

    def _drop_waiting(self, row: Entry) -> None:
        self._waiting.pop(row.id, None)
        if self._by_server.get((row.user, row.server)) == row.id:
            del self._by_server[row.user, row.server]

    def of(self, user: str, server: str) -> Entry | None:
        """Who waits for a user's server."""
        return self._waiting.get(self._by_server.get((user, server), ""))

    def add(self, **values: Any) -> Entry:
        """A new row."""
        row = Entry(**values)
        with self._engine.begin() as connection:
            connection.execute(insert(_QUEUE), {column.name: getattr(row, column.name) for column in _QUEUE.columns})
        self._keep(row)
        return row

    def change(self, session: str, **values: Any) -> None:
        """Other values of a row; nothing where there is none."""
        row = self._rows.get(session)
        if row is None or all(getattr(row, name) == value for name, value in values.items()):
            return
        with self._engine.begin() as connection:
            connection.execute(update(_QUEUE).where(_QUEUE.c.id == session).values(**values))
        for name, value in values.items():
            setattr(row, name, value)
        if row.state != "waiting":
            self._drop_waiting(row)

    def remove(self, session: str) -> None:
        """A row is not needed any more. Safe to repeat."""
        if session not in self._rows:
            return
        with self._engine.begin() as connection:
            connection.execute(delete(_QUEUE).where(_QUEUE.c.id == session))
        self._drop_waiting(self._rows.pop(session))

    def waited(self, row: Entry, seconds: float) -> None:
        """Remember what became of a forecast."""
        if row.forecast_seconds is None:
            return
        what = {"kind": row.kind, "forecast_seconds": row.forecast_seconds, "waited_seconds": seconds}
        with self._engine.begin() as connection:
            connection.execute(insert(_WAITS), what)
