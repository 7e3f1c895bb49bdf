"""The ledger as a trace: who wanted what when, for `gpuspawner queue replay`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any, cast, get_args

from sqlalchemy import Engine, Table, func, select

from gpuspawner.errors import NotFound
from gpuspawner.queue.trace import Cards, Head, Job, Kind
from gpuspawner.service.tables import LedgerRow, SessionRow
from gpuspawner.share import GPUShare

_SESSIONS, _LEDGER = cast(Table, SessionRow.__table__), cast(Table, LedgerRow.__table__)
_CARDS = select(_LEDGER).where(_LEDGER.c.session == "", _LEDGER.c.kind.in_(("card", "gone"))).order_by(_LEDGER.c.id)
_ASKED = func.coalesce(_SESSIONS.c.asked_ms, _SESSIONS.c.created_ms)
_PAGE = 5000


def lines(engine: Engine, start: int, end: int, *, names: bool = False) -> Iterator[str]:
    """The trace of the sessions that were asked for from second `start` until before `end`, line by line; its own times
    begin at `start`. Without `names` the users are numbered in the order in which they came.

    `seconds` is how long the work would have taken with the share that it began with: the eighth-seconds that it held
    until its end, or `end` where it goes on, over those eighths. A session that was parked and came back is two.
    Raises NotFound where no card was there in that time.
    """
    head = Head(trace=1, cards=_cards(engine, start, end))
    return _all(engine, head, start, end, names)


def _all(engine: Engine, head: Head, start: int, end: int, names: bool) -> Iterator[str]:
    yield head.model_dump_json()
    numbers: dict[str, str] = {}
    for job in _jobs(engine, start, end):
        if not names:
            job.user = numbers.setdefault(job.user, f"u{len(numbers) + 1}")
        yield job.model_dump_json(exclude_none=True)


def _cards(engine: Engine, start: int, end: int) -> list[Cards]:
    there: dict[str, tuple[str, str]] = {}
    seen: dict[str, tuple[str, str]] = {}
    with engine.connect() as connection:
        for row in connection.execute(_CARDS.where(_LEDGER.c.at_ms < end * 1000)):
            if row.at_ms >= start * 1000:
                seen.update(there)
            for uuid in json.loads(row.cards):
                if row.kind == "card":
                    there[uuid] = (row.node, row.model)
                else:
                    there.pop(uuid, None)
    seen.update(there)
    if not seen:
        raise NotFound("No card was there in that time, so there is no trace.", field="start", given=start)
    counts = sorted(Counter(seen.values()).items())
    return [Cards(node=node, model=model, count=count) for (node, model), count in counts]


def _jobs(engine: Engine, start: int, end: int) -> Iterator[Job]:
    wanted = (
        select(*_SESSIONS.c, _ASKED.label("since_ms"), _LEDGER.c.at_ms, _LEDGER.c.eighths)
        .join(_LEDGER, _LEDGER.c.session == _SESSIONS.c.id)
        .where(start * 1000 <= _ASKED, end * 1000 > _ASKED, _LEDGER.c.kind != "correction")
        .order_by(_ASKED, _SESSIONS.c.id, _LEDGER.c.id)
    )
    with engine.connect() as connection:
        found = connection.execution_options(yield_per=_PAGE).execute(wanted)
        for _, rows in groupby(found, key=lambda row: row.id):
            job = _job(list(rows), start, end)
            if job is not None:
                yield job


def _job(rows: list[Any], start: int, end: int) -> Job | None:
    first = rows[0]
    if not first.eighths:  # a session without a card
        return None
    milliseconds = 0
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        until = end * 1000 if after is None else min(after.at_ms, end * 1000)
        milliseconds += row.eighths * max(0, until - row.at_ms)
    share = GPUShare(first.eighths)
    return Job(
        session=first.id,
        user=first.user,
        kind=first.kind if first.kind in get_args(Kind) else "interactive",
        share=share.amount,
        at=first.since_ms / 1000 - start,
        seconds=milliseconds / 1000 / share.eighths,
        told=first.run_seconds,
        deadline=None if first.deadline_ms is None else max(first.since_ms, first.deadline_ms) / 1000 - start,
    )
