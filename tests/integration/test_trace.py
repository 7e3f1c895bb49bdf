"""The ledger as a trace: what was asked for, when, and how much work it was, as `gpuspawner queue replay` reads it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.memory_fleet import House, MemoryFleet

from gpuspawner.queue.replay import replay
from gpuspawner.queue.rules import POLICIES
from gpuspawner.queue.trace import parse

#: An hour ago: a deadline must be to come.
BEGIN = int(time.time()) - 3600


class Fleet(MemoryFleet):
    """Sessions without processes yet."""

    def alive(self, session: str) -> bool:
        return False


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = BEGIN * 1000
        monkeypatch.setattr("gpuspawner.service.store.now_ms", lambda: self.now)
        monkeypatch.setattr("gpuspawner.service.ledger.keeper.now_ms", lambda: self.now)

    def go(self, seconds: float) -> None:
        self.now += round(seconds * 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_trace_says_who_wanted_what_when_and_how_much_work_it_was(tmp_path: Path, clock: Clock) -> None:
    house = House(tmp_path, None, Fleet(cards=1))
    house.service.queue.clock = lambda: clock.now / 1000
    ann = house.start("ann", "1", run_seconds=500).json()["session"]["id"]
    clock.go(100)
    bob = house.start(
        "bob", "1/2", wait=True, kind="training", deadline=datetime.fromtimestamp(BEGIN + 7200, UTC).isoformat()
    )
    assert bob.status_code == 202, bob.text
    bob = bob.json()["waiting"]["id"]
    assert house.ask("ann", "PATCH", f"/sessions/{ann}", json={"share": "1/4"}).status_code == 200
    house.service.look()
    clock.go(400)
    house.ask("hub", "DELETE", f"/sessions/{ann}")
    house.start("ann", "none")
    clock.go(100)

    def text(**more: object) -> str:
        query = {"start": BEGIN, "end": BEGIN + 600, **more}
        answer = house.ask("admin", "GET", "/ledger/trace", params=query)
        assert answer.status_code == 200, answer.text
        return str(answer.text)

    trace = parse(text().splitlines())
    assert [each.model_dump() for each in trace.cards] == [{"model": "h100-80gb", "count": 1, "node": ""}]
    first, second = trace.jobs
    assert first.model_dump() == {
        "session": ann,
        "user": "u1",
        "kind": "interactive",
        "share": "1",
        "at": 0,
        "seconds": 200,  # 100 s of the whole, 400 s of a quarter
        "told": 500,
        "deadline": None,
    }
    assert second.model_dump() == {
        "session": bob,
        "user": "u2",
        "kind": "training",
        "share": "1/2",
        "at": 100,
        "seconds": 500,  # it goes on
        "told": None,
        "deadline": 7200,
    }
    assert [job.user for job in parse(text(names=True).splitlines()).jobs] == ["ann", "bob"]
    assert [job.session for job in parse(text(start=BEGIN + 50).splitlines()).jobs] == [bob]
    assert replay(trace, POLICIES["standard"]).jobs == 2
    house.engine.dispose()


def test_only_administrators_get_it_and_a_time_without_cards_has_none(tmp_path: Path, clock: Clock) -> None:
    house = House(tmp_path, None, Fleet(cards=1))
    house.start("ann", "1/8")
    assert house.ask("ann", "GET", "/ledger/trace").status_code == 403
    empty = house.ask("admin", "GET", "/ledger/trace", params={"start": 5, "end": 10})
    assert (empty.status_code, empty.json()["error"]["field"]) == (404, "start")
    assert house.ask("admin", "GET", "/ledger/trace?start=9&end=3").status_code == 422
    house.engine.dispose()
