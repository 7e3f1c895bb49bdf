"""Parking for the more urgent: notice, what is saved, the stop, and the way back; killed in between."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support.memory_fleet import House, MemoryFleet
from support.parking import POLICY, Place
from support.postgres import postgres


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    monkeypatch.setattr(made.fleet, "used_bytes", lambda session: 79 << 30)
    return made


@pytest.mark.parametrize("killed", ["never", "after each step"])
def test_the_whole_way_there_and_back(place: Place, killed: str) -> None:
    there_and_back(place, killed)


def test_the_whole_way_on_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with postgres() as cluster:
        place = Place(tmp_path, url=cluster.database())
        monkeypatch.setattr(place.fleet, "used_bytes", lambda session: 79 << 30)
        there_and_back(place, "after each step")
        place.house.engine.dispose()


def there_and_back(place: Place, killed: str) -> None:
    def step() -> None:
        if killed != "never":
            place.killed()
            place.house.service.queue.seen(urgent)

    tom = place.full("tom")
    urgent = place.waits("ursa")
    assert place.states() == {"tom": "noticed"}
    since = place.house.service.queue.parker.rows.get(tom).since_ms  # type: ignore[union-attr]
    (told,) = place.house.ask("tom", "GET", f"/sessions/{tom}").json()["notices"]
    assert told["code"] == "parking"
    assert told["deadline"] is not None
    notice = place.notice(tom)
    step()
    place.look()
    assert place.fleet.tellings == [(tom, place.fleet.told[tom])], "the notice is given once"
    assert place.hub.asked == [], "nobody is stopped who has not said that it is saved"

    assert place.answer(tom, "tom").json() == {"notice": notice, "state": "saved"}
    assert place.answer(tom, "tom").status_code in (200, 409), "said twice is said once"
    step()
    place.house.service.look()
    assert place.states() == {"tom": "stopping"}
    assert urgent not in place.fleet.held, "its place is not free yet"
    step()
    place.look()
    assert place.hub.asked == [("options", "tom"), ("stop", "tom")]
    assert place.states() == {"tom": "parked"}
    assert list(place.fleet.held) == [urgent]
    step()
    assert place.full("ursa") == urgent
    place.look()
    assert place.hub.asked[2:] == [("start", "tom")]
    (waits,) = place.house.service.queue.entries.waiting()
    assert (waits.user, waits.kind, waits.since_ms, waits.share) == ("tom", "training", since, "1")
    place.look()
    assert place.hub.asked[2:] == [("start", "tom")], "who waits is not started again"

    step()
    place.house.service.queue.seen(waits.id)
    place.house.ask("hub", "DELETE", f"/sessions/{urgent}")
    place.house.service.look()
    assert list(place.fleet.held) == [waits.id], "it came back by itself"
    step()
    place.look()
    assert place.states() == {"tom": "parked"}, "until its server runs"
    assert place.full("tom") == waits.id
    place.look()
    assert place.states() == {}
    assert len(place.fleet.tellings) == 1
    assert [name for what, name in place.hub.asked if what == "stop"] == ["tom"], "parked once"
    assert place.fleet.states["GPU-0000-00"].free_eighths == 0


def test_who_cannot_save_or_says_nothing_is_not_stopped_and_the_next_one_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, 2, POLICY + "parking:\n- {class: training, notice_seconds: 600}\n")
    monkeypatch.setattr(place.fleet, "used_bytes", lambda session: 79 << 30)
    first, second = place.full("tom"), place.full("tia")
    urgent = place.waits("ursa")
    asked = next(iter(place.fleet.told))
    who, other = ("tom", "tia") if asked == first else ("tia", "tom")
    assert place.answer(asked, who, outcome="failed").json()["state"] == "failed"
    assert asked not in place.fleet.told, "its notice is void"
    place.house.service.look()
    assert place.states() == {other: "noticed"}
    left = second if asked == first else first

    clock = place.house.service.queue.clock
    monkeypatch.setattr(place.house.service.queue, "clock", lambda: clock() + 601)
    place.house.service.look()
    place.look()
    assert place.states() == {}, "time is over, and both rest"
    assert place.answer(left, other, "p-0").status_code == 409
    assert place.hub.asked == []
    assert {first, second} == set(place.fleet.held)
    assert urgent not in place.fleet.held


def test_a_notice_is_void_when_the_room_is_not_needed_any_more(place: Place) -> None:
    tom = place.full("tom")
    urgent = place.waits("ursa")
    notice = place.notice(tom)
    place.house.ask("hub", "DELETE", f"/sessions/{urgent}")
    place.house.service.look()
    assert place.fleet.told == {}
    answer = place.answer(tom, "tom", notice)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "void")
    assert tom in place.fleet.held


def test_a_second_urgent_one_takes_over_the_notice_of_the_first(place: Place) -> None:
    tom = place.full("tom")
    first = place.waits("ursa")
    second = place.waits("uli")
    place.house.ask("hub", "DELETE", f"/sessions/{first}")
    place.house.service.look()
    assert [row.wanted_by for row in place.house.service.queue.parker.rows] == [second]
    assert len(place.fleet.tellings) == 1
    place.answer(tom, "tom")
    place.house.service.look()
    place.look()
    assert list(place.fleet.held) == [second]


def test_a_hub_that_is_away_is_waited_for_and_one_that_refuses_ends_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tom = place.full("tom")
    place.waits("ursa")
    place.answer(tom, "tom")
    place.house.service.look()
    place.hub.down = True
    place.look()
    assert place.states() == {"tom": "stopping"}
    place.hub.down, place.hub.refuses = False, True
    later = time.monotonic() + 60
    monkeypatch.setattr("gpuspawner.service.waiting.parker.time.monotonic", lambda: later)
    place.house.service.queue.errands()
    assert place.states() == {}
    assert tom in place.fleet.held


def test_who_gives_up_does_not_come_back(place: Place) -> None:
    tom = place.full("tom")
    place.waits("ursa")
    place.answer(tom, "tom")
    place.house.service.look()
    place.look()
    place.look()
    (waits,) = place.house.service.queue.entries.waiting()
    assert place.house.ask("tom", "DELETE", f"/sessions/{waits.id}").status_code == 200
    place.look()
    assert place.states() == {}
    assert [what for what, _ in place.hub.asked].count("start") == 1


def test_a_clock_that_is_set_back_prolongs_no_notice(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.full("tom")
    urgent = place.waits("ursa")
    (row,) = place.house.service.queue.parker.rows
    noticed = row.noticed_ms / 1000
    monkeypatch.setattr("gpuspawner.service.waiting.telling.time.time", lambda: noticed - 86400)
    place.killed()
    place.house.service.queue.seen(urgent)
    assert place.house.service.queue.clock() >= noticed


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"notice": "p-1", "outcome": "saved", "said": "x"}, 409),
        ({"notice": "p-1", "outcome": "perhaps", "said": "x"}, 422),
        ({"notice": "", "outcome": "saved", "said": "x"}, 422),
        ({"notice": "p-1", "outcome": "saved", "said": "x" * 1001}, 422),
        ({"notice": "p-1", "outcome": "saved", "said": "x", "more": 1}, 422),
    ],
)
def test_bad_answers(place: Place, body: dict[str, Any], status: int) -> None:
    tom = place.full("tom")
    place.waits("ursa")
    assert place.house.ask("server:tom/", "PUT", f"/sessions/{tom}/parking", json=body).status_code == status
    assert place.house.ask("eve", "PUT", f"/sessions/{tom}/parking", json=body).status_code in (404, 422)
    assert place.states() == {"tom": "noticed"}


def test_nobody_is_parked_where_it_is_not_switched_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path, POLICY, MemoryFleet(cards=1))
    monkeypatch.setattr(house.fleet, "used_bytes", lambda session: 79 << 30)
    house.start("tom", "1")
    house.service.look()
    assert house.start("ursa", "1", wait=True).status_code == 202
    assert (house.fleet.told, len(house.service.queue.parker.rows)) == ({}, 0)


SPENT = """
budgets:
- {name: course, users: [tom], eighth_hours: 0, grace_minutes: 0, park_minutes: 0}
"""


def test_at_the_end_of_a_budget_who_is_saved_is_parked_until_there_is_budget(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tom = place.full("tom")
    place.policy = POLICY + SPENT
    place.house.write(place.policy)
    assert place.states() == {"tom": "noticed"}
    (told,) = [
        each
        for each in place.house.ask("tom", "GET", f"/sessions/{tom}").json()["notices"]
        if each["code"] == "parking"
    ]
    assert told["message"].startswith("Your budget is used up.")
    place.look()
    assert place.hub.asked == [], "not before it is saved"
    place.killed()
    place.house.service.look()
    place.answer(tom, "tom")
    place.look()
    assert place.states() == {"tom": "parked"}
    assert place.hub.asked == [("options", "tom"), ("stop", "tom")]
    place.look()
    assert place.fleet.held == {}
    assert ("start", "tom") not in place.hub.asked, "there is no budget"
    tia = place.full("tia")
    place.house.ask("hub", "DELETE", f"/sessions/{tia}")

    place.house.write(POLICY)
    later = time.monotonic() + 60
    monkeypatch.setattr("gpuspawner.service.waiting.parker.time.monotonic", lambda: later)
    monkeypatch.setattr(place.hub, "start", lambda user, server, options: place.house.start(user, **options))
    place.look()
    assert [grant.eighths_per_card for grant in place.fleet.held.values()] == [1], "as it was when it was parked"
