"""Reads and writes of sessions and ledger rows. Each write is one transaction.

Statements are made once and rows are read without SQLAlchemy's unit of work: a resize waits for both.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

from sqlalchemy import Connection, Engine, Table, bindparam, insert, select, text, update

from gpuspawner.fleet.base import Grant
from gpuspawner.service.clock import now_ms
from gpuspawner.service.ledger.chain import COLUMNS, hash_of
from gpuspawner.service.ledger.energy import Meter
from gpuspawner.service.tables import LedgerRow, MarkRow, SessionRow
from gpuspawner.service.tariff import Pricing
from gpuspawner.share import GPUShare

Kind = Literal["start", "resize", "excess", "price", "end", "free", "card", "gone", "correction"]
LIVE = ("starting", "running")

_SESSIONS, _LEDGER = cast(Table, SessionRow.__table__), cast(Table, LedgerRow.__table__)
_MARKS = cast(Table, MarkRow.__table__)
_ALL_SESSIONS = select(_SESSIONS).order_by(_SESSIONS.c.created_ms.desc(), _SESSIONS.c.id)
_ALL_ENTRIES = select(_LEDGER).order_by(_LEDGER.c.id.desc())
_SESSION = select(_SESSIONS).where(_SESSIONS.c.id == bindparam("session"))
_SESSION_TO_CHANGE = _SESSION.with_for_update()
_CHANGE = update(_SESSIONS).where(_SESSIONS.c.id == bindparam("session"))
_LAST = select(_LEDGER.c.id, _LEDGER.c.at_ms, _LEDGER.c.hash).order_by(_LEDGER.c.id.desc()).limit(1)
#: What a session holds and pays; a correction does not say it.
_LAST_OF = (
    select(_LEDGER)
    .where(_LEDGER.c.session == bindparam("session"), _LEDGER.c.kind != "correction")
    .order_by(_LEDGER.c.id.desc())
    .limit(1)
)
_MARK = select(_MARKS.c.value).where(_MARKS.c.name == bindparam("name"))
_CARDS = select(_LEDGER).where(_LEDGER.c.session == "", _LEDGER.c.kind.in_(("card", "gone"))).order_by(_LEDGER.c.id)
#: PostgreSQL's lock of whoever adds to the chain; any number that nobody else uses.
_CHAIN_LOCK = text("SELECT pg_advisory_xact_lock(7215046)")


@dataclass(frozen=True)
class Asked:
    """What a session's start said: when it was asked for (None: now), how long it will run, when it must be done."""

    at_ms: int | None = None
    run_seconds: float | None = None
    deadline_ms: int | None = None


@dataclass(frozen=True)
class CardChange:
    """A card is there and its node costs so much per hour (None: unknown) since `at` (None: now), or it is gone."""

    kind: Literal["card", "gone"]
    node: str
    uuid: str
    model: str
    cost: int | None
    at: int | None = None


class Store:
    """The service's memory. Thread-safe; rows handed out are copies."""

    def __init__(self, engine: Engine, tariff: Pricing) -> None:
        self.engine = engine
        self._tariff = tariff
        self.meter = Meter()
        #: the project that a user's server counts to; None: none
        self.project_of: Callable[[str, str], str | None] = lambda _user, _server: None
        self._server = engine.dialect.name != "sqlite"
        # What is written depends on what was read, and SQLite's transactions begin with the first write.
        self._writing = threading.Lock()

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self._writing, self.engine.begin() as connection:
            if self._server:
                connection.execute(_CHAIN_LOCK)
            yield connection

    def session(self, session: str) -> SessionRow | None:
        """A session by id."""
        with self.engine.connect() as connection:
            found = connection.execute(_SESSION, {"session": session}).one_or_none()
        return None if found is None else SessionRow(**found._mapping)

    def live(self, user: str, server: str) -> SessionRow | None:
        """The session of a user's server that is starting or running."""
        rows = self.sessions(user=user, server=server, states=LIVE)
        return rows[0] if rows else None

    def sessions(
        self, user: str | None = None, server: str | None = None, states: Sequence[str] = ()
    ) -> list[SessionRow]:
        """Sessions, newest first."""
        query = _ALL_SESSIONS
        if user is not None:
            query = query.where(_SESSIONS.c.user == user)
        if server is not None:
            query = query.where(_SESSIONS.c.server == server)
        if states:
            query = query.where(_SESSIONS.c.state.in_(states))
        with self.engine.connect() as connection:
            return [SessionRow(**found._mapping) for found in connection.execute(query)]

    def held(self) -> Sequence[Any]:
        """The rows of all sessions that hold something, as the database gives them: for who reads thousands each
        second, for whom objects of SessionRow cost more than the question."""
        query = _ALL_SESSIONS.where(_SESSIONS.c.state.in_((*LIVE, "ending")))
        with self.engine.connect() as connection:
            return connection.execute(query).all()

    def ledger(self, session: str | None = None, limit: int = 100, before: int | None = None) -> list[LedgerRow]:
        """Ledger rows, newest first; those before the row of that number."""
        query = _ALL_ENTRIES.limit(limit)
        if before is not None:
            query = query.where(_LEDGER.c.id < before)
        if session is not None:
            query = query.where(_LEDGER.c.session == session)
        with self.engine.connect() as connection:
            return [LedgerRow(**found._mapping) for found in connection.execute(query)]

    def started(
        self,
        grant: Grant,
        user: str,
        server: str,
        share: GPUShare,
        actor: str,
        reason: str = "started",
        kind: str = "interactive",
        asked: Asked | None = None,
    ) -> SessionRow:
        """Write down a new session with its first ledger row. Raises Unavailable where nobody says its project now."""
        asked = asked or Asked()
        new: dict[str, Any] = {
            "id": grant.session,
            "user": user,
            "server": server,
            "state": "starting",
            "share": share.amount,
            "model": grant.cards[0].model if grant.cards else "",
            "cards": json.dumps([card.uuid for card in grant.cards]),
            "created_ms": 0,
            "burst": grant.burst,
            "kind": kind,
            "project": self.project_of(user, server),
            "run_seconds": asked.run_seconds,
            "deadline_ms": asked.deadline_ms,
        }
        row = SessionRow(**new)
        with self._write() as connection:
            row.created_ms = new["created_ms"] = self._enter(
                connection, row, "start", share.eighths, None, actor, reason
            )
            row.asked_ms = new["asked_ms"] = min(asked.at_ms or row.created_ms, row.created_ms)
            connection.execute(insert(_SESSIONS), new)
        return row

    def running(self, session: str) -> None:
        """A session's first process was seen."""
        with self._write() as connection:
            row = _to_change(connection, session)
            if row is not None and row.state == "starting":
                _change(connection, row, state="running")

    def resized(
        self, session: str, share: GPUShare, actor: str, reason: str | None = None, at: int | None = None
    ) -> SessionRow | None:
        """A live session holds another share from now (or `at`) on, or the same as before, which needs no writing. None
        where it has ended meanwhile: nothing follows the end of a session in the ledger but its `free`."""
        with self._write() as connection:
            row = _to_change(connection, session)
            if row is None or row.state not in LIVE:
                return None
            if row.share != share.amount:
                why = f"from {row.share} to {share.amount}" if reason is None else reason
                _change(connection, row, share=share.amount)
                self._enter(connection, row, "resize", share.eighths, at, actor, why)
            return row

    def set_burst(self, session: str, burst: bool) -> SessionRow | None:
        """A live session may compute with what others leave idle, or no longer. Its price is the same. None where
        it has ended meanwhile."""
        with self._write() as connection:
            row = _to_change(connection, session)
            if row is None or row.state not in LIVE:
                return None
            _change(connection, row, burst=burst)
            return row

    def noted(self, session: str, reason: str) -> None:
        """The node saw a live session go over its limit, or acted upon that. What it holds and pays stays as it is."""
        with self._write() as connection:
            row = _to_change(connection, session)
            if row is not None and row.state in LIVE:
                eighths = GPUShare.parse(row.share).eighths
                self._enter(connection, row, "excess", eighths, None, "node", reason)

    def ended(self, session: str, freed: bool, actor: str, reason: str, at: int | None = None) -> None:
        """A session's use has ended (`at`, if it is known to be earlier than now), and where `freed`, its eighths are
        free again. Safe to repeat."""
        with self._write() as connection:
            row = _to_change(connection, session)
            if row is None or row.state == "ended" or (row.state == "ending" and not freed):
                return
            if row.state in LIVE:
                written = self._enter(connection, row, "end", 0, at, actor, reason)
                _change(connection, row, state="ending", ended_ms=written, end_reason=reason)
            if freed:
                _change(connection, row, state="ended")
                self._enter(connection, row, "free", 0, None, "node", "none of its memory left on the card")

    def repriced(self, at: int | None) -> int:
        """Other prices hold, since `at` or now: each live session gets a row with its new one. How many did."""
        count = 0
        with self._write() as connection:
            for row in self.sessions(states=LIVE):
                share = GPUShare.parse(row.share)
                last = connection.execute(_LAST_OF, {"session": row.id}).one()
                price = self._tariff.price_micros(share, row.model)
                if (last.price_micros, last.currency) != (price, self._tariff.currency):
                    self._enter(connection, row, "price", share.eighths, at, "node", "another price holds")
                    count += 1
        return count

    def entry(self, number: int) -> LedgerRow | None:
        """A row of the ledger by its number."""
        with self.engine.connect() as connection:
            found = connection.execute(select(_LEDGER).where(_LEDGER.c.id == number)).one_or_none()
        return None if found is None else LedgerRow(**found._mapping)

    def cards(self) -> dict[str, tuple[str, str, int | None]]:
        """The cards that are there by the ledger: of each its node, its model, and what the node costs per hour."""
        found: dict[str, tuple[str, str, int | None]] = {}
        with self.engine.connect() as connection:
            for row in connection.execute(_CARDS):
                for uuid in json.loads(row.cards):
                    if row.kind == "card":
                        found[uuid] = (row.node, row.model, row.cost_micros)
                    else:
                        found.pop(uuid, None)
        return found

    def note_cards(self, changes: Sequence[CardChange]) -> None:
        """Write down cards that came, went, or whose node costs something else: all of them or none."""
        with self._write() as connection:
            for change in changes:
                eighths = 8 if change.kind == "card" else 0
                what = {"session": "", "user": "", "server": "", "kind": change.kind, "model": change.model}
                more = {"node": change.node, "cost_micros": change.cost, "eighths": eighths, "price_micros": 0}
                where = {"cards": json.dumps([change.uuid]), "actor": "node", "reason": ""}
                self._append(connection, change.at, {**what, **more, **where})

    def corrected(self, row: LedgerRow, amount_micros: int, actor: str, reason: str) -> int:
        """Charge more or less than a row says, from the moment of the correction on; the new row's id."""
        with self._write() as connection:
            what = {name: getattr(row, name) for name in ("session", "user", "server", "model", "cards", "project")}
            more = {"kind": "correction", "eighths": 0, "price_micros": 0, "actor": actor, "reason": reason}
            self._append(connection, None, {**what, **more, "amount_micros": amount_micros, "corrects": row.id})
            return int(connection.execute(_LAST).one().id)

    def mark(self, name: str) -> str | None:
        """What the service remembers under a name."""
        with self.engine.connect() as connection:
            found: str | None = connection.scalar(_MARK, {"name": name})
        return found

    def set_mark(self, name: str, value: str) -> None:
        """Remember something under a name."""
        with self._writing, self.engine.begin() as connection:
            changed = connection.execute(update(_MARKS).where(_MARKS.c.name == name).values(value=value))
            if not changed.rowcount:
                connection.execute(insert(_MARKS), {"name": name, "value": value})

    def _enter(
        self, connection: Connection, row: SessionRow, kind: Kind, eighths: int, at: int | None, actor: str, reason: str
    ) -> int:
        """Add a row about a session to the ledger; its time."""
        price = self._tariff.price_micros(GPUShare(eighths), row.model) if eighths else 0
        last = None if kind == "start" else connection.execute(_LAST_OF, {"session": row.id}).one_or_none()
        entry = {
            "session": row.id,
            "user": row.user,
            "server": row.server,
            "kind": kind,
            "model": row.model,
            "cards": row.cards,
            "eighths": eighths,
            "price_micros": price,
            "project": row.project,
            "actor": actor,
            "reason": reason,
            **(self.meter.read(json.loads(row.cards), last) if kind != "free" else {}),
        }
        return self._append(connection, at, entry)

    def _append(self, connection: Connection, at: int | None, entry: dict[str, Any]) -> int:
        """Add a row to the chain, dated now or `at`, but never before the last row: clocks are set back. Its time."""
        last = connection.execute(_LAST).one_or_none()
        moment = now_ms() if at is None else at
        moment = moment if last is None else max(moment, last.at_ms)
        row = {**dict.fromkeys(COLUMNS), **entry, "at_ms": moment, "currency": self._tariff.currency}
        row["id"], row["prev"] = (1, "") if last is None else (last.id + 1, last.hash)
        row["hash"] = hash_of(row)
        connection.execute(insert(_LEDGER), row)
        return moment


def _to_change(connection: Connection, session: str) -> SessionRow | None:
    found = connection.execute(_SESSION_TO_CHANGE, {"session": session}).one_or_none()
    return None if found is None else SessionRow(**found._mapping)


def _change(connection: Connection, row: SessionRow, **values: Any) -> None:
    """Write new values of a session, and put them into `row`."""
    connection.execute(_CHANGE, {"session": row.id, **values})
    for name, value in values.items():
        setattr(row, name, value)
