"""A decision of policy and placement, with 8,000 sessions on 1,000 nodes of eight cards: whether a start is allowed and
which card it gets, without the writing down. A fleet in memory, SQLite, a policy with rules by group. The baseline:
the same placement without a policy and without asking the database how many sessions the user has."""

from __future__ import annotations

import contextlib
import gc
import statistics
import tempfile
import time
from pathlib import Path

from gpuspawner.errors import NoRoom
from gpuspawner.fleet.base import Grant
from gpuspawner.fleet.placement import place
from gpuspawner.service.store import LIVE
from gpuspawner.share import GPUShare
from tests.support.memory_fleet import House, MemoryFleet

SESSIONS, NODES, CARDS, PEOPLE, ROUNDS = 8000, 1000, 8, 300, 500
_POLICY = """
version: 1
cards: [{uuid: GPU-0007-03, labels: {dataset: test}}]
rules:
  - {name: staff, groups: [staff], allow: {sessions: 30}}
  - {name: interns, groups: [interns], allow: {shares: [1/8, 1/4], nodes: [n1, n2, n3, n4, n5, n6, n7], sessions: 3}}
  - {name: students, groups: [students], allow: {models: [h100], cards: [dataset=test], sessions: 1}}
"""
_GROUPS = ("staff", "interns", "students", "staff")
_SHARES = ("1/8", "1/4", "1/8", "1")


def run() -> tuple[float, str]:
    """The 99th percentile, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        house = _house(Path(folder))
        decisions, placements = [], []
        gc.collect()
        gc.freeze()  # as the service does when it has started
        for number in range(ROUNDS):
            user, share = f"new{number}", GPUShare.parse(_SHARES[number % 4])
            house.people.groups[user] = [_GROUPS[number % 4]]
            placements.append(_timed(lambda share=share: place(share, house.fleet.cards())))
            decisions.append(_timed(lambda user=user, share=share: _decide(house, user, share)))
        gc.unfreeze()
        house.engine.dispose()
    print(f"{SESSIONS} sessions, {NODES * CARDS} cards, {ROUNDS} decisions")
    for name, times in (("placement alone", placements), ("policy and placement", decisions)):
        print(f"{name}: median {statistics.median(times):.2f} ms, 99 % within {_p99(times):.2f} ms")
    return _p99(decisions), "ms"


def _decide(house: House, user: str, share: GPUShare) -> None:
    live = len(house.store.sessions(user=user, states=LIVE))
    cards = house.fleet.cards()
    card = house.service.book.check_start(user, share, "default", cards, None, live)
    place(share, cards, card)


def _timed(what: object) -> float:
    begin = time.perf_counter()
    with contextlib.suppress(NoRoom):
        what()  # type: ignore[operator]
    return (time.perf_counter() - begin) * 1000


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def _house(folder: Path) -> House:
    fleet = MemoryFleet(nodes=NODES, cards=CARDS)
    house = House(folder, fleet=fleet)
    for number in range(SESSIONS):
        uuid = f"GPU-{number // CARDS:04}-{number % CARDS:02}"
        grant = Grant(f"s-{number}", (fleet.states[uuid].card,), 2)
        fleet.hold(grant)
        house.store.started(grant, f"u{number % PEOPLE}", f"s{number}", GPUShare(2), "hub")
    house.path.write_text(_POLICY)
    house.source.refresh()
    return house
