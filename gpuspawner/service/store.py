"""Reads and writes of sessions and ledger rows. Each write is one transaction."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session as Transaction

from gpuspawner.fleet.base import Grant
from gpuspawner.service.tables import LedgerRow, SessionRow
from gpuspawner.service.tariff import Tariff
from gpuspawner.share import GPUShare

Kind = Literal["start", "resize", "excess", "end", "free"]
LIVE = ("starting", "running")


def now_ms() -> int:
    """Milliseconds since the epoch, UTC."""
    return time.time_ns() // 1_000_000


class Store:
    """The service's memory. Thread-safe; rows handed out are detached copies."""

    def __init__(self, engine: Engine, tariff: Tariff) -> None:
        self._engine = engine
        self._tariff = tariff
        # What is written depends on what was read, and SQLite's transactions begin with the first write.
        self._writing = threading.Lock()

    @contextmanager
    def _write(self) -> Iterator[Transaction]:
        with self._writing, Transaction(self._engine, expire_on_commit=False) as transaction, transaction.begin():
            yield transaction

    def session(self, session: str) -> SessionRow | None:
        """A session by id."""
        with Transaction(self._engine, expire_on_commit=False) as transaction:
            return transaction.get(SessionRow, session)

    def live(self, user: str, server: str) -> SessionRow | None:
        """The session of a user's server that is starting or running."""
        rows = self.sessions(user=user, server=server, states=LIVE)
        return rows[0] if rows else None

    def sessions(
        self, user: str | None = None, server: str | None = None, states: Sequence[str] = ()
    ) -> list[SessionRow]:
        """Sessions, newest first."""
        query = select(SessionRow).order_by(SessionRow.created_ms.desc(), SessionRow.id)
        if user is not None:
            query = query.where(SessionRow.user == user)
        if server is not None:
            query = query.where(SessionRow.server == server)
        if states:
            query = query.where(SessionRow.state.in_(states))
        with Transaction(self._engine, expire_on_commit=False) as transaction:
            return list(transaction.scalars(query))

    def ledger(self, session: str | None = None, limit: int = 100) -> list[LedgerRow]:
        """Ledger rows, newest first."""
        query = select(LedgerRow).order_by(LedgerRow.id.desc()).limit(limit)
        if session is not None:
            query = query.where(LedgerRow.session == session)
        with Transaction(self._engine, expire_on_commit=False) as transaction:
            return list(transaction.scalars(query))

    def started(self, grant: Grant, user: str, server: str, share: GPUShare, actor: str) -> SessionRow:
        """Write down a new session with its first ledger row."""
        at = now_ms()
        row = SessionRow(
            id=grant.session,
            user=user,
            server=server,
            state="starting",
            share=share.amount,
            model=grant.cards[0].model if grant.cards else "",
            cards=json.dumps([card.uuid for card in grant.cards]),
            created_ms=at,
            burst=grant.burst,
        )
        with self._write() as transaction:
            transaction.add(row)
            transaction.add(self._entry(row, "start", share.eighths, at, actor, "started"))
        return row

    def running(self, session: str) -> None:
        """A session's first process was seen."""
        with self._write() as transaction:
            row = self._row(transaction, session)
            if row is not None and row.state == "starting":
                row.state = "running"

    def resized(self, session: str, share: GPUShare, actor: str, reason: str) -> bool:
        """A live session holds another share from now on. False where it has ended meanwhile: nothing follows
        the end of a session in the ledger but its `free`."""
        with self._write() as transaction:
            row = self._row(transaction, session)
            if row is None or row.state not in LIVE:
                return False
            row.share = share.amount
            at = self._now(transaction, row)
            transaction.add(self._entry(row, "resize", share.eighths, at, actor, reason))
            return True

    def set_burst(self, session: str, burst: bool) -> None:
        """A session may compute with what others leave idle, or no longer. Its price is the same."""
        with self._write() as transaction:
            row = self._row(transaction, session)
            if row is not None:
                row.burst = burst

    def noted(self, session: str, reason: str) -> None:
        """The node saw a live session go over its limit, or acted upon that. What it holds and pays stays as it is."""
        with self._write() as transaction:
            row = self._row(transaction, session)
            if row is not None and row.state in LIVE:
                at = self._now(transaction, row)
                eighths = GPUShare.parse(row.share).eighths
                transaction.add(self._entry(row, "excess", eighths, at, "node", reason))

    def ended(self, session: str, freed: bool, actor: str, reason: str) -> None:
        """A session's use has ended, and where `freed`, its eighths are free again. Safe to repeat."""
        with self._write() as transaction:
            row = self._row(transaction, session)
            if row is None or row.state == "ended" or (row.state == "ending" and not freed):
                return
            at = self._now(transaction, row)
            if row.state in LIVE:
                row.state = "ending"
                row.ended_ms = at
                row.end_reason = reason
                transaction.add(self._entry(row, "end", 0, at, actor, reason))
            if freed:
                row.state = "ended"
                transaction.add(self._entry(row, "free", 0, at, "node", "none of its memory left on the card"))

    def _row(self, transaction: Transaction, session: str) -> SessionRow | None:
        return transaction.get(SessionRow, session, with_for_update=True)

    def _now(self, transaction: Transaction, row: SessionRow) -> int:
        """The time of a session's next row: now, but never before its last row, since clocks are set back."""
        last = transaction.scalar(select(func.max(LedgerRow.at_ms)).where(LedgerRow.session == row.id))
        return max(now_ms(), row.created_ms, last or 0)

    def _entry(self, row: SessionRow, kind: Kind, eighths: int, at: int, actor: str, reason: str) -> LedgerRow:
        price = self._tariff.price_micros(GPUShare(eighths), row.model) if eighths else 0
        return LedgerRow(
            at_ms=at,
            session=row.id,
            user=row.user,
            server=row.server,
            kind=kind,
            model=row.model,
            cards=row.cards,
            eighths=eighths,
            price_micros=price,
            currency=self._tariff.currency,
            actor=actor,
            reason=reason,
        )
