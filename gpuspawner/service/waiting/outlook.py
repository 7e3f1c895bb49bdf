"""What those who wait are told: where they stand, why, and how long it will probably be."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuspawner.fleet.base import CardState
from gpuspawner.queue import Waiting
from gpuspawner.queue.clockwork import expected_wait, expected_waits
from gpuspawner.queue.forecast import Expected, Record
from gpuspawner.service.waiting.entries import Entry
from gpuspawner.service.waiting.scene import Scene
from gpuspawner.service.waiting.telling import Place, reason_of
from gpuspawner.share import GPUShare

if TYPE_CHECKING:
    from gpuspawner.service.waiting.clerk import Clerk

#: How often what is expected of waits is found out anew, seconds: of those who wait, of those who would.
_FORECAST_EVERY, _WOULD_EVERY = 5.0, 20.0
#: How long a session is taken to run of which nothing is known, before any others have ended.
_OTHERWISE = 3600.0
#: Who is further back is told nothing of how long it will be.
_FORECAST_MOST = 64


class Outlook:
    """Places and forecasts of a clerk's queue. `place`, `places`, `stored` and `would_wait` are thread-safe; the clerk
    calls the others."""

    def __init__(self, clerk: Clerk) -> None:
        self._clerk = clerk
        self._record = Record()
        #: Of the last decision: who waits, in order; who cannot be served now, and why; the cards.
        self._order: dict[str, tuple[int, Waiting]] = {}
        self._aside: dict[str, str] = {}
        self._states: list[CardState] = []
        self._forecasts: dict[str, float] = {}
        self._next_forecast = 0.0
        self._would_wait: dict[tuple[str, GPUShare], tuple[float, Expected | None]] = {}

    # -- what the clerk notes --------------------------------------------------------------------------

    def recall(self) -> None:
        """Take over what became of earlier forecasts. With the clerk's lock held, as all of this part but `look`."""
        self._record = self._clerk.entries.record()

    def forget(self, session: str) -> None:
        """Somebody does not wait any more."""
        self._forecasts.pop(session, None)
        self._order.pop(session, None)

    def over(self, row: Entry, waited: float) -> None:
        """Somebody has its share, after so many seconds."""
        if row.forecast_seconds is not None:
            self._record.waited(row.kind, row.forecast_seconds, waited)
        self._forecasts.pop(row.id, None)

    def note(self, found: Scene, now: float) -> None:
        """After a decision: who stands where and why."""
        order = enumerate(found.board.in_order(self._clerk.rules, now))
        self._order = {asked.session: (number, asked) for number, (_, asked) in order}
        self._aside = found.aside
        self._states = [*found.cards.values(), *found.cut]

    def look(self) -> None:
        """Forecast anew where it is time to."""
        if time.monotonic() >= self._next_forecast and self._clerk.anybody:
            self._next_forecast = time.monotonic() + _FORECAST_EVERY
            self._forecast()

    def _forecast(self) -> None:
        """What is expected of those who will start first; of the others nothing is known."""
        clerk = self._clerk
        with clerk.lock:
            found, now = clerk.scene(forecast=True), clerk.clock()
        if not found.board.waiting:
            return
        usual = self._record.usual(_OTHERWISE)
        forecasts = expected_waits(found.board, clerk.rules, now, otherwise=usual, most=_FORECAST_MOST)
        with clerk.lock:
            self._forecasts = forecasts
            for session, seconds in forecasts.items():
                row = clerk.entries.get(session)
                if row is not None and row.state == "waiting" and row.forecast_seconds is None:
                    waited = max(0.0, now - row.since_ms / 1000)
                    clerk.entries.change(session, forecast_seconds=waited + seconds)

    # -- what people are told --------------------------------------------------------------------------

    def place(self, row: Entry) -> Place:
        """Where somebody stands."""
        return self.places([row])[0]

    def stored(self) -> list[Place]:
        """Who waits by the database, for a service that does not decide."""
        return [
            Place(row, None, "Another service decides here.", max(0.0, time.time() - row.since_ms / 1000))
            for row in self._clerk.entries.stored()
            if row.state == "waiting"
        ]

    def places(self, rows: list[Entry] | None = None) -> list[Place]:
        """Where all stand, or some."""
        clerk = self._clerk
        with clerk.lock:
            now = clerk.clock()
            chosen = clerk.entries.waiting() if rows is None else rows
            going: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
            for other in clerk.entries.waiting():
                if other.forecast_seconds is not None:
                    going[other.kind].append((other.forecast_seconds, max(0.0, now - other.since_ms / 1000)))
            found = [self._told(row, now, going) for row in chosen]
        return sorted(found, key=lambda each: (each.place is None, each.place or 0, each.row.since_ms))

    def _told(self, row: Entry, now: float, going: Mapping[str, list[tuple[float, float]]]) -> Place:
        waited = max(0.0, now - row.since_ms / 1000)
        expected = self._record.expected(row.kind, row.forecast_seconds, going[row.kind])
        in_time: bool | None = None
        if row.deadline_ms is not None and row.run_seconds is not None:
            begin = now + (self._forecasts.get(row.id, 0.0))
            in_time = begin + row.run_seconds <= row.deadline_ms / 1000
        parked = self._clerk.parker.rows.parked(row.user, row.server)
        if row.id not in self._order:
            why = self._aside.get(row.id, "A place is looked for.")
            return Place(row, None, why, waited, expected, in_time, parked)
        number, asked = self._order[row.id]
        return Place(row, number + 1, reason_of(asked, self._states, number), waited, expected, in_time, parked)

    def would_wait(self, kind: str, share: GPUShare) -> Expected | None:
        """How long somebody would wait who came now; None where it is not known. Found out anew now and then."""
        now = time.monotonic()
        with self._clerk.lock:
            until, known = self._would_wait.get((kind, share), (0.0, None))
            if now >= until:
                known = self._find_out(kind, share) if self._record.knows(kind) else None
                self._would_wait[kind, share] = now + _WOULD_EVERY, known
        return known

    def _find_out(self, kind: str, share: GPUShare) -> Expected | None:
        board, at = self._clerk.scene(forecast=True).board, self._clerk.clock()
        board.wait(Waiting("", "", kind, share, at))
        usual = self._record.usual(_OTHERWISE)
        return self._record.expected(kind, expected_wait(board, self._clerk.rules, at, "", otherwise=usual))
