"""Reports over a period: by user, by group, by session; and the rows of the ledger for exports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

from sqlalchemy import Engine, Table, and_, or_, select

from gpuspawner.errors import InvalidInput
from gpuspawner.service.ledger.accounts import Accounts, Line
from gpuspawner.service.tables import LedgerRow, SessionRow

_SESSIONS, _LEDGER = cast(Table, SessionRow.__table__), cast(Table, LedgerRow.__table__)
_PAGE = 5000


def month_of(text: str, zone: ZoneInfo) -> tuple[int, int]:
    """The first second of a month ("2026-11") in a time zone, and that of the next one. Raises InvalidInput."""
    try:
        first = datetime.strptime(text, "%Y-%m").replace(tzinfo=zone)
        if not 2000 <= first.year <= 2200:
            raise ValueError
    except ValueError:
        raise InvalidInput("month: must be a year and a month.", field="month", given=text, allowed="2026-11") from None
    after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return int(first.timestamp()), int(after.timestamp())


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


def lines(engine: Engine, start: int, end: int) -> list[Line]:
    """The accounts of the seconds from `start` until before `end`."""
    accounts = Accounts(start, end)
    accounts.add(about(engine, start, end))
    return accounts.close()


@dataclass
class Sum:
    """What some sessions used together. None: unknown for one of them at least."""

    name: str
    sessions: int = 0
    eighth_seconds: int = 0
    charge_micros: int = 0
    cost_micros: int | None = 0
    energy_mj: int | None = 0
    co2_ug: int | None = 0

    def add(self, line: Line) -> None:
        """With another line."""
        self.sessions += line.kind == "session"
        self.eighth_seconds += line.eighth_seconds
        self.charge_micros += line.charge_micros
        for name in ("cost_micros", "energy_mj", "co2_ug"):
            mine, more = getattr(self, name), getattr(line, name)
            setattr(self, name, None if mine is None or more is None else mine + more)


@dataclass
class Report:
    """A period's accounts, summed up. `node_cost_micros`: of all nodes; the sums' costs and `idle` (what nobody used,
    or was not free yet) make it up exactly. None: unknown."""

    start: int
    end: int
    by: str
    sums: list[Sum]
    idle: Sum | None
    node_cost_micros: int | None
    charge_micros: int = field(init=False)

    def __post_init__(self) -> None:
        self.charge_micros = sum(each.charge_micros for each in self.sums)


def report(
    engine: Engine, start: int, end: int, by: str, groups: Callable[[str], Sequence[str]], only: str | None = None
) -> Report:
    """The report of a period in seconds since the epoch, `by` user, group, session or model. A user of several groups
    counts for the first of them by name, so that groups add up. `only`: of that user alone, without what nodes cost."""
    accounts = Accounts(start, end)
    accounts.add(about(engine, start, end))
    sums: dict[str, Sum] = {}
    idle = Sum("")
    for line in accounts.close():
        if line.kind != "session":
            idle.add(line)
            continue
        if only is not None and line.user != only:
            continue
        if by == "group":
            name = min(groups(line.user), default="(no group)")
        else:
            name = {"user": line.user, "session": line.session, "model": line.model}[by]
        sums.setdefault(name, Sum(name)).add(line)
    if only is not None:
        return Report(start, end, by, sorted(sums.values(), key=lambda each: each.name), None, None)
    costs = list(accounts.node_costs.values())
    total = (
        None if not costs or any(cost is None for cost in costs) else sum(cost for cost in costs if cost is not None)
    )
    return Report(start, end, by, sorted(sums.values(), key=lambda each: each.name), idle, total)
