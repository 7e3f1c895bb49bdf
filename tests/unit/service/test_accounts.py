"""Costs and idle are together what the nodes cost, to the unit, over any period and however it is cut."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuspawner.service.ledger.accounts import Accounts, statement

BEGIN = 1_790_000_000


@dataclass
class Entry:
    id: int
    at_ms: int
    kind: str
    session: str = ""
    user: str = ""
    model: str = "h100-80gb"
    cards: str = "[]"
    eighths: int = 0
    price_micros: int = 0
    node: str | None = None
    cost_micros: int | None = None
    energy_mj: int | None = None
    co2_ug: int | None = None
    amount_micros: int | None = None
    project: str | None = None


@dataclass
class World:
    """Cards of two nodes and sessions on them, as the service would write it down."""

    rows: list[Entry] = field(default_factory=list)
    now_ms: int = BEGIN * 1000
    free: dict[str, int] = field(default_factory=dict)
    held: dict[str, tuple[str, int]] = field(default_factory=dict)

    def add(self, kind: str, **values: Any) -> None:
        self.rows.append(Entry(len(self.rows) + 1, self.now_ms, kind, **values))

    def act(self, what: int, number: int, ms: int) -> None:
        self.now_ms += ms
        cards = sorted(self.free)
        sessions = sorted(self.held)
        if what == 0 or not sessions:
            card, eighths = cards[number % len(cards)], (1, 2, 4, 8)[number % 4]
            if self.free[card] >= eighths:
                self._write("start", f"s-{len(self.rows)}", card, eighths)
        elif what == 1:
            session = sessions[number % len(sessions)]
            card, before = self.held[session]
            eighths = (1, 2, 4, 8)[number % 4]
            if self.free[card] + before >= eighths:
                self._write("resize", session, card, eighths)
        elif what == 2:
            session = sessions[number % len(sessions)]
            self.add("end", session=session, user=f"u{hash(session) % 3}", cards=json.dumps([self.held[session][0]]))
            self.now_ms += number * 37
            self._write("free", session, self.held[session][0], 0)
        else:
            card = cards[number % len(cards)]
            cost = 1_234_567 + number
            self.add("card", cards=json.dumps([card]), node=card[:2], cost_micros=cost, eighths=8)

    def _write(self, kind: str, session: str, card: str, eighths: int) -> None:
        before = self.held.get(session, (card, 0))[1]
        self.free[card] += before - eighths
        if eighths:
            self.held[session] = card, eighths
        else:
            self.held.pop(session)
        price = 800_001 * eighths
        self.add(kind, session=session, user="u", cards=json.dumps([card]), eighths=eighths, price_micros=price)


actions = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 5_000_000)), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(actions, st.lists(st.integers(0, 4000), max_size=6))
def test_every_cut_balances_and_adds_up(acts: list[tuple[int, int, int]], cuts: list[int]) -> None:
    world = World()
    for card in ("n1-a", "n1-b", "n2-a"):
        world.free[card] = 8
        world.add("card", cards=json.dumps([card]), node=card[:2], cost_micros=3_000_007, eighths=8)
    for act in acts:
        world.act(*act)
    start, end = BEGIN, world.now_ms // 1000 + 100
    places = sorted({start, end, *(start + (end - start) * cut // 4000 for cut in cuts)})
    pieces: dict[tuple[str, str, str], list[int]] = {}
    for begin, over in [*itertools.pairwise(places), (start, end)]:
        accounts = Accounts(begin, over)
        accounts.add(world.rows)
        lines = accounts.close()
        costs = sum(line.cost_micros or 0 for line in lines)
        assert costs == sum(cost or 0 for cost in accounts.node_costs.values()), "costs + idle = what the nodes cost"
        assert all((line.cost_micros or 0) >= 0 for line in lines)
        held = sum(line.eighth_seconds for line in lines)
        assert held == 24 * (over - begin), "every eighth of every second is somebody's"
        for line in lines:
            key = (line.kind, line.session, line.card)
            whole = pieces.setdefault(key, [0, 0, 0])
            sign = -1 if (begin, over) == (start, end) and len(places) > 2 else 1
            if len(places) > 2:
                for at, value in enumerate((line.eighth_seconds, line.cost_micros or 0, line.charge_micros)):
                    whole[at] += sign * value
    if len(places) > 2:
        assert all(whole == [0, 0, 0] for whole in pieces.values()), "the pieces are together the whole"


def test_an_hour_by_hand() -> None:
    """One card for 8.00 an hour, half of it held for half an hour at 1.30 an hour, then not free for a minute."""
    card = json.dumps(["c"])
    at = BEGIN * 1000
    rows = [
        Entry(1, at, "card", cards=card, node="", cost_micros=8_000_000, eighths=8),
        Entry(2, at, "start", "s", "ann", cards=card, eighths=4, price_micros=1_300_000),
        Entry(3, at + 1_800_000, "end", "s", "ann", cards=card, energy_mj=500, co2_ug=7),
        Entry(4, at + 1_860_999, "free", "s", "ann", cards=card),
        Entry(5, at + 3_000_000, "correction", "s", "ann", cards=card, amount_micros=-650_000),
    ]
    lines = {line.kind: line for line in statement(rows, BEGIN, BEGIN + 3600)}
    used = lines["session"]
    assert (used.eighth_seconds, used.cost_micros, used.charge_micros) == (7200, 2_000_000, 0), "650,000 given back"
    assert (used.energy_mj, used.co2_ug) == (500, 7)
    assert (lines["reserved"].eighth_seconds, lines["reserved"].charge_micros) == (240, 0)
    assert sum(line.cost_micros or 0 for line in lines.values()) == 8_000_000
    before = {line.kind: line for line in statement(rows, BEGIN, BEGIN + 1800)}
    assert before["session"].charge_micros == 650_000


def test_a_cost_that_nobody_said_is_unknown_and_not_nothing() -> None:
    rows = [Entry(1, BEGIN * 1000, "card", cards='["c"]', node="", cost_micros=None, eighths=8)]
    (idle,) = statement(rows, BEGIN, BEGIN + 10)
    assert (idle.eighth_seconds, idle.cost_micros) == (80, None)
