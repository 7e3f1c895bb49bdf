"""Reports over a period: by user, group, project, model or session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy import Engine

from gpuspawner.errors import InvalidInput
from gpuspawner.service.ledger.accounts import Accounts, Line, plus
from gpuspawner.service.ledger.rows import about
from gpuspawner.service.ledger.sums import Total, totals


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

    def add(self, line: Total | Line) -> None:
        """With another line or total."""
        if line.kind == "session":
            self.sessions += bool(line.eighth_seconds) if isinstance(line, Line) else line.sessions
        self.eighth_seconds += line.eighth_seconds
        self.charge_micros += line.charge_micros
        self.cost_micros = plus(self.cost_micros, line.cost_micros)
        self.energy_mj = plus(self.energy_mj, line.energy_mj)
        self.co2_ug = plus(self.co2_ug, line.co2_ug)


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
    """The report of a period in seconds since the epoch, `by` user, group, project, model or session. A user of several
    groups counts for the first of them by name, so that groups add up. `only`: of that user alone, without what nodes
    cost. By session it reads every row of the period, else the sums of its hours."""
    sums: dict[str, Sum] = {}
    idle = Sum("")
    found: Sequence[Total | Line] = _lines(engine, start, end) if by == "session" else totals(engine, start, end)
    for each in found:
        if each.kind != "session":
            idle.add(each)
        elif only is None or each.user == only:
            sums.setdefault(_name(each, by, groups), Sum("")).add(each)
    for name, total in sums.items():
        total.name = name
    listed = sorted(sums.values(), key=lambda each: each.name)
    if only is not None:
        return Report(start, end, by, listed, None, None)
    node_cost: int | None = 0 if found else None
    for each in found:
        node_cost = plus(node_cost, each.cost_micros)
    return Report(start, end, by, listed, idle, node_cost)


def _lines(engine: Engine, start: int, end: int) -> list[Line]:
    accounts = Accounts(start, end)
    accounts.add(about(engine, start, end))
    return accounts.close()


def _name(each: Total | Line, by: str, groups: Callable[[str], Sequence[str]]) -> str:
    if by == "group":
        return min(groups(each.user), default="(no group)")
    if by == "project":
        return each.project or "(no project)"
    if by == "session":
        assert isinstance(each, Line)
        return each.session
    return each.model if by == "model" else each.user
