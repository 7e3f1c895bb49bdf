"""Which of several services on one database decides. The others serve reads."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Protocol

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)

_TRY = text("SELECT pg_try_advisory_lock(7215048)")
_LET_GO = text("SELECT pg_advisory_unlock(7215048)")
_ALIVE = text("SELECT 1")


class Leadership(Protocol):
    """Whether this service leads."""

    def refresh(self) -> bool:
        """Try to lead, or see whether it still does; whether it does now."""
        ...

    @property
    def leads(self) -> bool:
        """Whether it did at the last look."""
        ...


class Alone:
    """The only service of its database."""

    leads = True

    def refresh(self) -> bool:
        """Always."""
        return True


class PostgresLeadership:
    """Leads who holds a lock of PostgreSQL's on a connection of its own: it is let go of with the connection, when the
    service ends or the server no longer hears of it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self.leads = False

    def refresh(self) -> bool:
        """Try to lead, or see whether the connection still stands."""
        with self._lock:
            led = self.leads
            try:
                if self._connection is None:
                    self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                if self.leads:
                    self._connection.execute(_ALIVE)
                else:
                    self.leads = bool(self._connection.scalar(_TRY))
            except SQLAlchemyError:
                self._drop()
            if led != self.leads:
                log.warning("this service %s", "leads now" if self.leads else "does not lead any more")
            return self.leads

    def _drop(self) -> None:
        self.leads = False
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Let another one lead."""
        with self._lock:
            if self._connection is not None and self.leads:
                with contextlib.suppress(SQLAlchemyError):
                    self._connection.execute(_LET_GO)
            self._drop()


def leadership_of(engine: Engine) -> Leadership:
    """How a service with this database leads. SQLite has one service: the node's own lock sees to that."""
    return Alone() if engine.dialect.name == "sqlite" else PostgresLeadership(engine)
