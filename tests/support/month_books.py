"""What a ledger must say, worked out from what the fleet says was held, by other means than the service's."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from gpuspawner.service.ledger.accounts import Accounts
from gpuspawner.service.ledger.chain import verify
from gpuspawner.service.ledger.report import month_of
from gpuspawner.service.ledger.rows import rows
from gpuspawner.service.ledger.sums import summed, totals
from gpuspawner.service.requests.records import Records
from gpuspawner.service.store import LIVE

from .memory_fleet import House

POLICY = """
version: 1
timezone: Europe/Berlin
prices:
  - {whole_card: {h100: "3.20"}}
  - {from: 2026-10-15T00:00:00+02:00, whole_card: {h100: "4.10"}, percent: {1/8: 30}}
costs:
  - {per_hour: "12.345678"}
  - {from: 2026-10-20T12:34:56+02:00, per_hour: "13.37"}
  - {node: n1, per_hour: "7.00"}
grid: [{grams_per_kwh: 380, source: a test}]
"""
_PRICE_CHANGE = int(datetime.fromisoformat("2026-10-15T00:00:00+02:00").timestamp())
_COST_CHANGE = int(datetime.fromisoformat("2026-10-20T12:34:56+02:00").timestamp())
#: Per hour, in millionths, by eighths: before the change and after it.
_PRICES = (
    {1: 800_000, 2: 1_280_000, 4: 2_080_000, 8: 3_200_000},
    {1: 1_230_000, 2: 1_640_000, 4: 2_665_000, 8: 4_100_000},
)


_SUMMED = ("sessions", "eighth_seconds", "charge_micros", "cost_micros")


def _in(rate: int, begin: int, end: int) -> int:
    """Millionths for the seconds from `begin` until `end` at a rate per hour."""
    return rate * end // 3600 - rate * begin // 3600 if end > begin else 0


def _charge(eighths: int, begin: int, end: int) -> int:
    before, after = (price[eighths] for price in _PRICES)
    return _in(before, begin, min(end, _PRICE_CHANGE)) + _in(after, max(begin, _PRICE_CHANGE), end)


def _node_cost(node: str, begin: int, end: int) -> int:
    if node == "n1":
        return _in(7_000_000, begin, end)
    return _in(12_345_678, begin, min(end, _COST_CHANGE)) + _in(13_370_000, max(begin, _COST_CHANGE), end)


@dataclass
class _Truth:
    """What a session held until its use ended. Seconds."""

    user: str
    changes: list[tuple[int, int]] = field(default_factory=list)  # from when on how many eighths
    end: int | None = None
    in_doubt: bool = False

    def use(self, now: int) -> tuple[int, int]:
        """Eighth-seconds, and what is charged for them."""
        end = now if self.end is None else self.end
        held = charged = 0
        for (begin, eighths), (over, _) in pairwise([*self.changes, (end, 0)]):
            over = min(over, end)
            held += eighths * max(0, over - begin)
            charged += _charge(eighths, begin, over)
        return held, charged


def _truths(lines: list[dict[str, Any]], outages: list[tuple[int, int, int]]) -> dict[str, _Truth]:
    found: dict[str, _Truth] = {}
    for line in lines:
        if "there" in line:
            continue
        truth = found.setdefault(line["session"], _Truth(line["user"]))
        for begin, until, seen in outages:
            # what was under way when the service was killed for long it found in force only afterwards
            truth.in_doubt |= line["at"] == begin
            if line["state"] != "live" and truth.end is None and line["away"] and begin < line["at"] <= until:
                truth.end = seen // 1000
        if line["state"] == "live":
            truth.changes.append((line["at"] // 1000, line["eighths"] * len(line["cards"])))
        elif truth.end is None:
            truth.end = line["at"] // 1000
    return found


def check(
    house: House, lines: list[dict[str, Any]], outages: list[tuple[int, int, int]], now_ms: int, seed: int
) -> dict[str, Any]:
    """Compare; how much was compared, and `out_of_balance`: by how many units of money and eighth-seconds it is off."""
    now, ledger = now_ms // 1000 + 1, list(rows(house.engine))
    first = ledger[0].at_ms // 1000
    problems: list[str] = []
    off = 0

    def same(what: str, is_: int, should: int) -> None:
        nonlocal off
        if is_ != should:
            off += abs(is_ - should)
            problems.append(f"{what}: {is_} and not {should}")

    def accounts(begin: int, end: int) -> Accounts:
        found = Accounts(begin, end)
        found.add(ledger)
        found.close()
        return found

    whole = accounts(first, now)
    truths = _truths(lines, outages)
    corrections: Counter[str] = Counter()
    for row in ledger:
        corrections[row.session] += row.amount_micros or 0
    by_session = {line.session: line for line in whole.lines.values() if line.kind == "session"}
    known = {row.session for row in ledger if row.session}
    for session, truth in truths.items():
        if truth.in_doubt:
            continue
        held, charged = truth.use(now)
        line = by_session.get(session)
        same(f"{session}: eighth-seconds", line.eighth_seconds if line else 0, held)
        same(f"{session}: charge", line.charge_micros if line else 0, charged + corrections[session])
    same("sessions that nobody held", len(known - truths.keys()), 0)

    berlin = house.source.current.prices.zone
    begin, end = month_of("2026-10", berlin)
    days = [begin + 86400 * day for day in range(33) if first < begin + 86400 * day < min(end, now)]
    chance = random.Random(seed)
    cuts = sorted({first, now, *(chance.randrange(first, now) for _ in range(8))})
    nodes = [f"n{node}" for node in range(len({state.node for state in house.fleet.states.values()}))]
    for name, places in (("day", sorted({*days, first, now})), ("cut", cuts)):
        sums: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        for one, two in pairwise(places):
            part = accounts(one, two)
            borne = sum(line.cost_micros or 0 for line in part.lines.values())
            same(f"{name} {one}: costs and idle", borne, sum(_node_cost(node, one, two) for node in nodes))
            for line in part.lines.values():
                for at, amount in enumerate((line.eighth_seconds, line.cost_micros or 0, line.charge_micros)):
                    sums[line.kind, line.session or line.card][at] += amount
        for line in whole.lines.values():
            parts = sums.pop((line.kind, line.session or line.card), [0, 0, 0])
            for at, amount in enumerate((line.eighth_seconds, line.cost_micros or 0, line.charge_micros)):
                same(f"{line.session or line.card}: together over each {name}", parts[at], amount)
    for one, two in [*pairwise(cuts), (first, now)]:
        ours, theirs = (
            Counter({(total.kind, total.user, what): getattr(total, what) or 0 for total in them for what in _SUMMED})
            for them in (totals(house.engine, one, two), summed(accounts(one, two).close()))
        )
        for key in ours.keys() | theirs.keys():
            same(f"{one} to {two}, summed up by the hour: {key}", ours[key], theirs[key])
    in_force = {grant.session for grant in house.fleet.grants() if not grant.ended}
    live = {row.id for row in house.store.sessions(states=LIVE)}
    same("sessions that live by one book alone", len(live ^ in_force), 0)
    chain = verify(row._mapping for row in ledger)
    problems += [problem for problem in (chain.problem, Records(house.engine).audit_problem()) if problem]
    sure = sum(not truth.in_doubt for truth in truths.values())
    counts = {
        "rows": len(ledger),
        "sessions": len(truths),
        "compared": sure,
        "users": len({t.user for t in truths.values()}),
    }
    return {**counts, "out_of_balance": off, "problems": problems[:20]}
