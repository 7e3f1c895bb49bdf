"""A report by user, group, project and model over all of a ledger of 10 million rows: the slowest of them, in seconds.

300 people, 2.5 million sessions on 64 cards within a year, in SQLite. The hours are closed before, as the service does
while it runs; the last hour is read row by row. The baseline: the same sums row by row, over the last hundredth of the
rows. `GPUSPAWNER_BENCH_ROWS`: another number of rows. To make them takes ten minutes, most of it for the sums."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sqlalchemy import Engine

from gpuspawner.service.database import open_database
from gpuspawner.service.ledger.accounts import Accounts
from gpuspawner.service.ledger.report import report
from gpuspawner.service.ledger.rows import about
from gpuspawner.service.ledger.sums import close_hours

ROWS = int(os.environ.get("GPUSPAWNER_BENCH_ROWS") or 10_000_000)
PEOPLE, CARDS, NODES = 300, 64, 8
_BEGIN = 1_767_225_600_000  # 2026 begins
_YEAR = 365 * 86400 * 1000
_ROUNDS = 3
# Each card has one session after the other, each of four rows.
_FILL = f"""
INSERT INTO ledger (id, at_ms, session, user, server, kind, model, cards, eighths, price_micros, currency, actor,
                    reason, node, cost_micros, energy_mj, co2_ug, project, prev, hash)
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :rows),
  parts AS (SELECT i, (i / (4 * {CARDS})) * {CARDS} + i % {CARDS} AS s, (i / {CARDS}) % 4 AS k FROM n)
SELECT i + 1 + {CARDS}, {_BEGIN} + CAST(1.0 * i * {_YEAR} / :rows AS INTEGER), 's-' || s, 'u' || (s * 7919 % {PEOPLE}),
  '', CASE k WHEN 0 THEN 'start' WHEN 1 THEN 'resize' WHEN 2 THEN 'end' ELSE 'free' END, 'h100-80gb',
  '["GPU-' || (s % {CARDS}) || '"]', CASE k WHEN 0 THEN 4 WHEN 1 THEN 2 ELSE 0 END,
  CASE k WHEN 0 THEN 2080000 WHEN 1 THEN 1280000 ELSE 0 END, 'EUR', 'hub', '', NULL, NULL,
  CASE k WHEN 0 THEN NULL ELSE 1000 END, CASE k WHEN 0 THEN NULL ELSE 100 END,
  CASE s % 3 WHEN 0 THEN NULL ELSE 'p' || (s * 7919 % {PEOPLE} % 10) END, '', ''
FROM parts
"""
_CARDS = f"""
INSERT INTO ledger (id, at_ms, session, user, server, kind, model, cards, eighths, price_micros, currency, actor,
                    reason, node, cost_micros, prev, hash)
SELECT value + 1, {_BEGIN}, '', '', '', 'card', 'h100-80gb', '["GPU-' || value || '"]', 8, 0, 'EUR', 'node', '',
  'n' || (value % {NODES}), 12345678, '', '' FROM generate_cards
"""


def run() -> tuple[float, str]:
    """The slowest report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "service.sqlite"
        engine = open_database(f"sqlite:///{path}")
        print(f"making {ROWS:,} rows", flush=True)
        _timed("rows", lambda: _fill(path))
        _timed("sums by the hour", lambda: _close(engine))
        begin, end = _BEGIN // 1000, (_BEGIN + _YEAR) // 1000
        slowest = 0.0
        for by in ("user", "group", "project", "model"):
            seconds = min(_seconds(lambda by=by: _report(engine, begin, end, by)) for _ in range(_ROUNDS))
            print(f"by {by}: {seconds:.3f} s")
            slowest = max(slowest, seconds)
        part = end - (end - begin) // 100
        print(f"row by row, over a hundredth of the rows: {_seconds(lambda: _row_by_row(engine, part, end)):.3f} s")
        engine.dispose()
    return slowest, "s"


def _report(engine: Engine, begin: int, end: int, by: str) -> None:
    found = report(engine, begin, end, by, lambda user: [f"g{int(user[1:]) % 12}"])
    assert sum(each.cost_micros or 0 for each in (*found.sums, found.idle)) == found.node_cost_micros  # type: ignore[union-attr]


def _row_by_row(engine: Engine, begin: int, end: int) -> None:
    accounts = Accounts(begin, end)
    accounts.add(about(engine, begin, end))
    accounts.close()


def _close(engine: Engine) -> None:
    while close_hours(engine):
        pass


def _fill(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute("CREATE TEMP TABLE generate_cards (value INTEGER)")
        database.executemany("INSERT INTO generate_cards VALUES (?)", [(card,) for card in range(CARDS)])
        database.execute(_CARDS)
        database.execute(_FILL, {"rows": ROWS})
        database.execute(
            "INSERT INTO sessions (id, user, server, state, share, model, cards, created_ms, burst, kind) "
            "SELECT session, user, '', 'ended', '1/4', model, cards, at_ms, 0, 'interactive' "
            "FROM ledger WHERE kind = 'start'"
        )
        database.commit()


def _seconds(what: Callable[[], None]) -> float:
    begin = time.perf_counter()
    what()
    return time.perf_counter() - begin


def _timed(name: str, what: Callable[[], None]) -> None:
    print(f"{name}: {_seconds(what):.1f} s", flush=True)
