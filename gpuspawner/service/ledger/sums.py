"""What was used by the hour, worked out once from the ledger's rows, so that nobody has to read all of them again.

An hour is closed once the ledger has a row of a later one: times never go back from one row to the next, so that
nothing can be added to it any more. The sums of closed hours and what was known at the end of the last one (the state
of the accounts) are written together; of whole days (UTC) there are sums too. Of a period, what is before, after or
beside closed hours is read row by row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Connection, Engine, Select, Table, case, func, insert, literal, select, update

from gpuspawner.service.ledger.accounts import Accounts, Line, plus
from gpuspawner.service.ledger.rows import about
from gpuspawner.service.tables import LedgerRow, MarkRow, UsageRow

HOUR = 3600
_MARK = "usage"
#: So many rows are worked off at once, and then the hour is finished: others want the processor too.
_ROWS = 5000
_DAY = 24
_LEDGER, _MARKS, _USAGE = (cast(Table, row.__table__) for row in (LedgerRow, MarkRow, UsageRow))
_COLUMNS = (
    *("kind", "user", "model", "project", "sessions", "starts", "eighth_seconds", "charge_micros"),
    *("cost_micros", "energy_mj", "co2_ug"),
)
_KEYS = tuple(_USAGE.c[name] for name in _COLUMNS[:4])


@dataclass
class Total:
    """What was used of a kind (session, reserved, idle) by a user, on a model, for a project. None: unknown. `starts`
    of the `sessions` held nothing before the period."""

    kind: str
    user: str
    model: str
    project: str
    sessions: int = 0
    starts: int = 0
    eighth_seconds: int = 0
    charge_micros: int = 0
    cost_micros: int | None = 0
    energy_mj: int | None = 0
    co2_ug: int | None = 0

    def add(self, more: Total | Line) -> None:
        """With another one that is not of an earlier hour."""
        self.eighth_seconds += more.eighth_seconds
        self.charge_micros += more.charge_micros
        self.cost_micros = plus(self.cost_micros, more.cost_micros)
        self.energy_mj = plus(self.energy_mj, more.energy_mj)
        self.co2_ug = plus(self.co2_ug, more.co2_ug)


def summed(lines: Iterable[Line]) -> list[Total]:
    """The totals of a period's lines."""
    found: dict[tuple[str, str, str, str], Total] = {}
    for line in lines:
        user = line.user if line.kind == "session" else ""
        key = (line.kind, user, line.model, line.project)
        total = found.setdefault(key, Total(*key))
        total.add(line)
        if line.kind == "session" and line.eighth_seconds:
            total.sessions += 1
            total.starts += line.new
    return list(found.values())


def totals(engine: Engine, start: int, end: int) -> list[Total]:
    """What was used in the seconds from `start` until before `end`."""
    state = _State.read(engine)
    if state is not None and start >= state.end:
        return summed(state.until(engine, max(end, start), start))
    first = -(-start // HOUR) * HOUR
    last = min(end // HOUR * HOUR, 0 if state is None else state.end)
    if state is None or first >= last:
        return summed(_row_by_row(engine, start, end))
    pieces: list[list[Total]] = []
    if start < first:
        pieces.append(summed(_row_by_row(engine, start, first)))
    with engine.connect() as connection:
        for span, begin, after in _spans(first // HOUR, last // HOUR):
            pieces.append(_closed(connection, span, begin, after))
    if last < end:
        rest = state.until(engine, end, last) if last == state.end else _row_by_row(engine, last, end)
        pieces.append(summed(rest))
    return _together(pieces)


def _spans(first: int, after: int) -> Iterator[tuple[int, int, int]]:
    """The hours from `first` until before `after` as few sums: their span, from which hour until before which. The very
    first stands by itself, since its sessions are counted whole, and of all others those that are new."""
    day, last_day = -(-first // _DAY) * _DAY, after // _DAY * _DAY
    if day >= last_day:
        yield from ((1, begin, over) for begin, over in ((first, first + 1), (first + 1, after)) if begin < over)
        return
    beginning = first + 1 if first < day else day + _DAY
    yield (1, first, beginning) if first < day else (_DAY, day, beginning)
    if beginning < day:
        yield 1, beginning, day
    if max(day, beginning) < last_day:
        yield _DAY, max(day, beginning), last_day
    if last_day < after:
        yield 1, last_day, after


def _together(pieces: Iterable[list[Total]]) -> list[Total]:
    """Pieces in the order of time as one; sessions that go on from one piece to the next count once."""
    found: dict[tuple[str, str, str, str], Total] = {}
    for number, piece in enumerate(pieces):
        for total in piece:
            key = (total.kind, total.user, total.model, total.project)
            whole = found.setdefault(key, Total(*key))
            whole.add(total)
            whole.sessions += total.starts if number else total.sessions
            whole.starts += total.starts
    return list(found.values())


def _row_by_row(engine: Engine, start: int, end: int) -> list[Line]:
    accounts = Accounts(start, end)
    accounts.add(about(engine, start, end))
    return accounts.close()


def _sums_of(span: int, begin: int, after: int) -> Select[Any]:
    """One row for each kind, user, model and project of the sums of a span from hour `begin` until before `after`."""

    def unknown_if_any(column: Any) -> Any:
        return case((func.count(column) == func.count(), func.sum(column)), else_=None)

    sessions = func.sum(case((_USAGE.c.hour == begin, _USAGE.c.sessions), else_=_USAGE.c.starts))
    sums = [func.sum(_USAGE.c[name]) for name in ("starts", "eighth_seconds", "charge_micros")]
    sums += [unknown_if_any(_USAGE.c[name]) for name in ("cost_micros", "energy_mj", "co2_ug")]
    hours = (_USAGE.c.span == span, _USAGE.c.hour >= begin, _USAGE.c.hour < after)
    return select(*_KEYS, sessions, *sums).where(*hours).group_by(*_KEYS)


def _closed(connection: Connection, span: int, begin: int, after: int) -> list[Total]:
    def whole(value: Any) -> Any:  # PostgreSQL's sums of bigint are decimal
        return value if value is None or isinstance(value, str) else int(value)

    return [Total(*map(whole, row)) for row in connection.execute(_sums_of(span, begin, after))]


def _close_days(connection: Connection, begin: int, after: int) -> None:
    """Sum up the days that ended within closed hours."""
    for day in range(begin // _DAY * _DAY, after // _DAY * _DAY, _DAY):
        hours = _sums_of(1, day, day + _DAY).add_columns(literal(_DAY), literal(day))
        connection.execute(insert(_USAGE).from_select([*_COLUMNS, "span", "hour"], hours))


@dataclass
class _State:
    """Up to which second hours are closed, and the accounts there; `row` is the last row that they know."""

    end: int
    row: int
    accounts: dict[str, Any]
    text: str = ""

    @classmethod
    def read(cls, engine: Engine) -> _State | None:
        """What was written last."""
        with engine.connect() as connection:
            text = connection.scalar(select(_MARKS.c.value).where(_MARKS.c.name == _MARK))
        if text is None:
            return None
        content = json.loads(text)
        return cls(content["accounts"]["end"], content["row"], content["accounts"], text)

    def until(self, engine: Engine, end: int, start: int) -> list[Line]:
        """The lines from `start` on, which is the end of this or later, until `end`."""
        accounts = Accounts.resumed(self.accounts, end)
        accounts.start = start
        accounts.add(_rows(engine, self.row, end * 1000))
        return accounts.close()


def _rows(engine: Engine, after: int, before_ms: int, most: int | None = None) -> Iterator[Any]:
    query = select(_LEDGER).where(_LEDGER.c.id > after, _LEDGER.c.at_ms < before_ms).order_by(_LEDGER.c.id)
    with engine.connect() as connection:
        yield from connection.execution_options(yield_per=_ROWS).execute(query if most is None else query.limit(most))


def close_hours(engine: Engine) -> bool:
    """Close the hours that can be, at most some thousands of rows at once; whether there may be more."""
    state = _State.read(engine)
    with engine.connect() as connection:
        newest = connection.scalar(select(_LEDGER.c.at_ms).order_by(_LEDGER.c.id.desc()).limit(1))
        oldest = connection.scalar(select(_LEDGER.c.at_ms).order_by(_LEDGER.c.id).limit(1))
    if newest is None or oldest is None:
        return False
    until = int(newest) // 1000 // HOUR * HOUR
    begin = oldest // 1000 // HOUR * HOUR if state is None else state.end
    if begin >= until:
        return False
    row = 0 if state is None else state.row
    accounts = Accounts(begin, begin + HOUR) if state is None else Accounts.resumed(state.accounts, begin + HOUR)
    found: list[dict[str, Any]] = []
    rows = _rows(engine, row, until * 1000)
    count, ahead = 0, next(rows, None)
    while True:
        while ahead is not None and ahead.at_ms < accounts.end * 1000:
            accounts.add((ahead,))
            row, count, ahead = ahead.id, count + 1, next(rows, None)
        found += [{"span": 1, "hour": accounts.start // HOUR, **vars(total)} for total in summed(accounts.close())]
        if accounts.end >= until or count >= _ROWS or len(found) >= _ROWS:
            break
        accounts = accounts.after(accounts.end + HOUR)
    rows.close()  # type: ignore[attr-defined]
    content = json.dumps({"row": row, "accounts": accounts.state()}, separators=(",", ":"))
    with engine.begin() as connection:
        if not _written(connection, None if state is None else state.text, content):
            return True  # another service did it in this moment
        for at in range(0, len(found), 500):
            connection.execute(insert(_USAGE), found[at : at + 500])
        _close_days(connection, begin // HOUR, accounts.end // HOUR)
    return accounts.end < until


def _written(connection: Connection, before: str | None, content: str) -> bool:
    if before is None:
        connection.execute(insert(_MARKS), {"name": _MARK, "value": content})
        return True
    query = update(_MARKS).where(_MARKS.c.name == _MARK, _MARKS.c.value == before).values(value=content)
    return int(connection.execute(query).rowcount) == 1
