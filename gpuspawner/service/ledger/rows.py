"""The ledger's rows: all of a period, and those that its accounts need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from sqlalchemy import Engine, Table, and_, or_, select

from gpuspawner.service.tables import LedgerRow, SessionRow

_SESSIONS, _LEDGER = cast(Table, SessionRow.__table__), cast(Table, LedgerRow.__table__)
_PAGE = 5000


def rows(engine: Engine, start: int | None = None, end: int | None = None) -> Iterator[Any]:
    """The ledger's rows in order, of the seconds from `start` until before `end`."""
    query = select(_LEDGER).order_by(_LEDGER.c.id)
    if start is not None:
        query = query.where(_LEDGER.c.at_ms >= start * 1000)
    if end is not None:
        query = query.where(_LEDGER.c.at_ms < end * 1000)
    with engine.connect() as connection:
        yield from connection.execution_options(yield_per=_PAGE).execute(query)


def about(engine: Engine, start: int, end: int) -> Iterator[Any]:
    """The rows that the accounts of a period need: those of the period, and before it those about cards and about the
    sessions that held something at its start."""
    begin, over = start * 1000, end * 1000
    later = select(_LEDGER.c.session).where(_LEDGER.c.at_ms >= begin, _LEDGER.c.kind == "free")
    held = select(_SESSIONS.c.id).where(
        _SESSIONS.c.created_ms < begin, or_(_SESSIONS.c.state != "ended", _SESSIONS.c.id.in_(later))
    )
    before = or_(_LEDGER.c.session.in_(held), and_(_LEDGER.c.session == "", _LEDGER.c.kind.in_(("card", "gone"))))
    query = select(_LEDGER).where(_LEDGER.c.at_ms < over, or_(_LEDGER.c.at_ms >= begin, before)).order_by(_LEDGER.c.id)
    with engine.connect() as connection:
        yield from connection.execution_options(yield_per=_PAGE).execute(query)
