"""Reads and writes of the sessions that were asked to save. Those that are not over are held in memory too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, cast

from sqlalchemy import Engine, Table, delete, insert, select, update

from gpuspawner.service.tables import ParkingRow

_PARKINGS = cast(Table, ParkingRow.__table__)
#: States in which something is still to be done.
OPEN = ("noticed", "saved", "stopping", "parked")
#: States of those that are over and went on, though they were to be parked.
MISSED = ("failed", "silent")
#: For how long what is over is remembered, seconds.
KEPT = 86400.0


@dataclass(slots=True)
class Parking:
    """A row in memory, as `ParkingRow` describes it."""

    id: str
    session: str
    user: str
    server: str
    state: str
    kind: str
    share: str
    since_ms: int
    wanted_by: str
    noticed_ms: int
    due_ms: int
    said: str | None = None
    options: str | None = None
    asked_by: str | None = None
    why: str | None = None
    back_ms: int | None = None
    card: str | None = None


class Parkings:
    """The rows of those that are not over, by session. Whoever changes them holds the clerk's lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[str, Parking] = {}
        self._parked: dict[tuple[str, str], Parking] = {}
        #: Of sessions that did not save, the latest notice.
        self._missed: dict[str, Parking] = {}
        #: When each user was last given a notice, and when the newest notice was given, milliseconds.
        self.last_notice: dict[str, int] = {}
        self.newest_ms = 0

    def recall(self) -> None:
        """Read what an earlier service left."""
        self._open.clear()
        self._parked.clear()
        self._missed.clear()
        with self._engine.connect() as connection:
            for found in connection.execute(select(_PARKINGS).order_by(_PARKINGS.c.noticed_ms)):
                row = Parking(**found._mapping)
                self._note(row)
                self._sort(row)

    def _sort(self, row: Parking) -> None:
        self._missed.pop(row.session, None)
        if row.state in OPEN:
            self._open[row.session] = row
        else:
            self._open.pop(row.session, None)
        if row.state == "parked":
            self._parked[row.user, row.server] = row
        elif self._parked.get((row.user, row.server)) is row:
            del self._parked[row.user, row.server]
        if row.state in MISSED:
            self._missed[row.session] = row

    def _note(self, row: Parking) -> None:
        self.last_notice[row.user] = max(row.noticed_ms, self.last_notice.get(row.user, 0))
        self.newest_ms = max(row.noticed_ms, self.newest_ms)

    def __iter__(self) -> Iterator[Parking]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def get(self, session: str) -> Parking | None:
        """What is under way with a session."""
        return self._open.get(session)

    def parked(self, user: str, server: str) -> Parking | None:
        """A user's server that is parked."""
        return self._parked.get((user, server))

    def missed(self, session: str) -> Parking | None:
        """The latest notice of a session that could not save, or said nothing in time."""
        return self._missed.get(session)

    def all_missed(self) -> list[Parking]:
        """Those of all sessions."""
        return list(self._missed.values())

    def forget(self, row: Parking) -> None:
        """Its session is over, so nobody asks what it has missed."""
        self._missed.pop(row.session, None)

    def add(self, row: Parking) -> None:
        """A notice is about to be given."""
        with self._engine.begin() as connection:
            old = row.noticed_ms - round(KEPT * 1000)
            over = _PARKINGS.c.state.not_in(OPEN) & (_PARKINGS.c.noticed_ms < old)
            connection.execute(delete(_PARKINGS).where(over))
            connection.execute(insert(_PARKINGS), {each.name: getattr(row, each.name) for each in fields(row)})
        self._sort(row)
        self._note(row)

    def change(self, row: Parking, **values: Any) -> None:
        """Other values of a row, written down before anything follows from them."""
        with self._engine.begin() as connection:
            connection.execute(update(_PARKINGS).where(_PARKINGS.c.id == row.id).values(**values))
        for name, value in values.items():
            setattr(row, name, value)
        self._sort(row)
