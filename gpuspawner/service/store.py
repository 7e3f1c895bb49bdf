"""Reads and writes of sessions and ledger rows. Each write is one transaction.

Statements are made once and rows are read without SQLAlchemy's unit of work: a resize waits for both.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

from sqlalchemy import Connection, Engine, Table, bindparam, insert, select, update

from gpuspawner.fleet.base import Grant
from gpuspawner.service.tables import LedgerRow, SessionRow
from gpuspawner.service.tariff import Pricing
from gpuspawner.share import GPUShare

Kind = Literal["start", "resize", "excess", "end", "free"]
LIVE = ("starting", "running")

_SESSIONS, _LEDGER = cast(Table, SessionRow.__table__), cast(Table, LedgerRow.__table__)
_ALL_SESSIONS = select(_SESSIONS).order_by(_SESSIONS.c.created_ms.desc(), _SESSIONS.c.id)
_ALL_ENTRIES = select(_LEDGER).order_by(_LEDGER.c.id.desc())
_SESSION = select(_SESSIONS).where(_SESSIONS.c.id == bindparam("session"))
_SESSION_TO_CHANGE = _SESSION.with_for_update()
_CHANGE = update(_SESSIONS).where(_SESSIONS.c.id == bindparam("session"))
_LAST = select(_LEDGER.c.at_ms).where(_LEDGER.c.session == bindparam("session")).order_by(_LEDGER.c.id.desc()).limit(1)


def now_ms() -> int:
    """Milliseconds since the epoch, UTC."""
    return time.time_ns() // 1_000_000


class Store:
    """The service's memory. Thread-safe; rows handed out are copies."""

    def __init__(self, engine: Engine, tariff: Pricing) -> None:
        self._engine = engine
        self._tariff = tariff
        # What is written depends on what was read, and SQLite's transactions begin with the first write.
        self._writing = threading.Lock()

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self._writing, self._engine.begin() as connection:
            yield connection

    def session(self, session: str) -> SessionRow | None:
        """A session by id."""
        with self._engine.connect() as connection:
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
        with self._engine.connect() as connection:
            return [SessionRow(**found._mapping) for found in connection.execute(query)]

    def ledger(self, session: str | None = None, limit: int = 100) -> list[LedgerRow]:
        """Ledger rows, newest first."""
        query = _ALL_ENTRIES.limit(limit)
        if session is not None:
            query = query.where(_LEDGER.c.session == session)
        with self._engine.connect() as connection:
            return [LedgerRow(**found._mapping) for found in connection.execute(query)]

    def started(
        self, grant: Grant, user: str, server: str, share: GPUShare, actor: str, reason: str = "started"
    ) -> SessionRow:
        """Write down a new session with its first ledger row."""
        at = now_ms()
        new = {
            "id": grant.session,
            "user": user,
            "server": server,
            "state": "starting",
            "share": share.amount,
            "model": grant.cards[0].model if grant.cards else "",
            "cards": json.dumps([card.uuid for card in grant.cards]),
            "created_ms": at,
            "burst": grant.burst,
        }
        row = SessionRow(**new)
        with self._write() as connection:
            connection.execute(insert(_SESSIONS), new)
            self._enter(connection, row, "start", share.eighths, at, actor, reason)
        return row

    def running(self, session: str) -> None:
        """A session's first process was seen."""
        with self._write() as connection:
            row = _to_change(connection, session)
            if row is not None and row.state == "starting":
                _change(connection, row, state="running")

    def resized(self, session: str, share: GPUShare, actor: str, reason: str | None = None) -> SessionRow | None:
        """A live session holds another share from now on, or the same as before, which needs no writing. None where
        it has ended meanwhile: nothing follows the end of a session in the ledger but its `free`."""
        with self._write() as connection:
            row = _to_change(connection, session)
            if row is None or row.state not in LIVE:
                return None
            if row.share != share.amount:
                why = f"from {row.share} to {share.amount}" if reason is None else reason
                _change(connection, row, share=share.amount)
                at = _now(connection, row)
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
                self._enter(connection, row, "excess", eighths, _now(connection, row), "node", reason)

    def ended(self, session: str, freed: bool, actor: str, reason: str) -> None:
        """A session's use has ended, and where `freed`, its eighths are free again. Safe to repeat."""
        with self._write() as connection:
            row = _to_change(connection, session)
            if row is None or row.state == "ended" or (row.state == "ending" and not freed):
                return
            at = _now(connection, row)
            if row.state in LIVE:
                _change(connection, row, state="ending", ended_ms=at, end_reason=reason)
                self._enter(connection, row, "end", 0, at, actor, reason)
            if freed:
                _change(connection, row, state="ended")
                self._enter(connection, row, "free", 0, at, "node", "none of its memory left on the card")

    def _enter(
        self, connection: Connection, row: SessionRow, kind: Kind, eighths: int, at: int, actor: str, reason: str
    ) -> None:
        """Add a row to the ledger."""
        price = self._tariff.price_micros(GPUShare(eighths), row.model) if eighths else 0
        entry = {
            "at_ms": at,
            "session": row.id,
            "user": row.user,
            "server": row.server,
            "kind": kind,
            "model": row.model,
            "cards": row.cards,
            "eighths": eighths,
            "price_micros": price,
            "currency": self._tariff.currency,
            "actor": actor,
            "reason": reason,
        }
        connection.execute(insert(_LEDGER), entry)


def _to_change(connection: Connection, session: str) -> SessionRow | None:
    found = connection.execute(_SESSION_TO_CHANGE, {"session": session}).one_or_none()
    return None if found is None else SessionRow(**found._mapping)


def _change(connection: Connection, row: SessionRow, **values: Any) -> None:
    """Write new values of a session, and put them into `row`."""
    connection.execute(_CHANGE, {"session": row.id, **values})
    for name, value in values.items():
        setattr(row, name, value)


def _now(connection: Connection, row: SessionRow) -> int:
    """The time of a session's next row: now, but never before its last row, since clocks are set back."""
    last = connection.scalar(_LAST, {"session": row.id})
    return max(now_ms(), row.created_ms, last or 0)
