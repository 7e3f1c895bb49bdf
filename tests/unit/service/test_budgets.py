"""Budgets: warned, then no growth, then shrunk; by user and by group, over rolling days and within a month."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.memory_fleet import House

HOURS = """
version: 1
budgets:
  - {name: course, groups: [course], eighth_hours: 8, days: 7, warn: [50, 90], grace_minutes: 10}
"""
MONEY = """
version: 1
prices: [{whole_card: {h100: "4.00"}}]
budgets:
  - {name: each, each: true, money: "4.00"}
"""


class Time:
    """All clocks of a house."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_790_000_000.0
        for module in ("gpuspawner.service.store", "gpuspawner.service.ledger.keeper"):
            monkeypatch.setattr(f"{module}.now_ms", lambda: int(self.now * 1000))

    def house(self, folder: Path, policy: str, **groups: list[str]) -> House:
        made = House(folder, policy, **groups)
        made.service.budgets._clock = lambda: self.now
        return made

    def go(self, house: House, minutes: float) -> None:
        self.now += minutes * 60
        house.service._next_budgets = 0.0
        house.service.look()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def codes(house: House, user: str) -> list[str]:
    (session,) = house.ask(user, "GET", "/sessions").json()["sessions"]
    return [notice["code"] for notice in session["notices"]]


def test_a_groups_hours(tmp_path: Path, clock: Time) -> None:
    house = clock.house(tmp_path, HOURS, ann=["course"], bob=["course"])
    ann = house.start("ann", "1/2", card="GPU-0000-00").json()["session"]["id"]
    assert house.start("bob", "1/8", card="GPU-0000-01").status_code == 201
    assert codes(house, "ann") == []
    clock.go(house, 60)  # 5 of 8 eighth-hours
    assert codes(house, "ann") == codes(house, "bob") == ["budget"]
    assert house.ask("ann", "PATCH", f"/sessions/{ann}", json={"share": "1"}).status_code == 200
    clock.go(house, 30)
    refused = house.ask("ann", "PATCH", f"/sessions/{ann}", json={"share": "1"})
    assert refused.status_code == 200, "the same share is no growth"
    refused = house.start("bob", "1/4", server="second")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "budget")
    assert "'course' of course is used up: 9.5 eighth-hours of 8" in refused.json()["error"]["message"]
    assert codes(house, "ann") == ["budget_used"]
    offers = house.ask("bob", "GET", "/offers").json()["offers"]
    assert not any(offer["available"] or offer["allowed"] or offer["can_wait"] for offer in offers)
    assert {offer["reason"] for offer in offers} == {refused.json()["error"]["message"]}
    assert any(offer["available"] for offer in house.ask("eve", "GET", "/offers").json()["offers"])
    (bobs,) = house.ask("bob", "GET", "/sessions").json()["sessions"]
    options = {option["share"]: option for option in bobs["options"]}
    assert options["1/8"]["available"], "what it has, it may have"
    assert (options["1/4"]["available"], options["1/4"]["reason"]) == (False, refused.json()["error"]["message"])
    assert house.start("eve", "1/8").status_code == 201, "not of the course"
    assert house.start("ann", "none", server="reading").status_code == 201, "that uses nothing"
    assert house.fleet.held[ann].eighths_per_card == 8, "within the grace"
    clock.go(house, 11)
    assert house.fleet.held[ann].eighths_per_card == 1
    (told,) = house.ask("ann", "GET", f"/sessions/{ann}").json()["notices"]
    assert told["deadline"] is None, "it is done"
    row = house.ask("ann", "GET", f"/events?session={ann}").json()["events"][0]
    assert (row["kind"], row["actor"], row["reason"]) == ("resize", "node", "the budget 'course' of course is used up")
    grown = house.ask("admin", "PATCH", f"/sessions/{ann}", json={"share": "1/4"})
    assert (grown.status_code, grown.json()["error"]["code"]) == (403, "budget")
    house.ask("hub", "DELETE", f"/sessions/{ann}")
    for session in house.ask("bob", "GET", "/sessions").json()["sessions"]:
        house.ask("hub", "DELETE", f"/sessions/{session['id']}")
    clock.go(house, 8 * 24 * 60)  # the window has rolled on
    assert house.start("bob", "1/4").status_code == 201


def test_everybodys_money_of_a_month(tmp_path: Path, clock: Time) -> None:
    clock.now = time.mktime(time.strptime("2026-10-10", "%Y-%m-%d"))
    house = clock.house(tmp_path, MONEY)
    ann = house.start("ann", "1").json()["session"]["id"]
    clock.go(house, 61)
    assert house.start("ann", "1/8", server="b").json()["error"]["code"] == "budget"
    assert house.start("bob", "1/8").status_code == 201, "bob has a budget of his own"
    house.ask("hub", "DELETE", f"/sessions/{ann}")
    clock.go(house, 60 * 24 * 30)
    assert house.start("ann", "1/8").status_code == 201, "another month"
