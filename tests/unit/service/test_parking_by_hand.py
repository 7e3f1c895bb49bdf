"""An administrator parks a session and moves it: with a reason, by the same steps as the service itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.memory_fleet import House, MemoryFleet
from support.parking import POLICY, Place

from gpuspawner.card import Card


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, cards=2)


def park(place: Place, session: str, who: str = "admin", **body: Any) -> Any:
    return place.house.ask(who, "POST", f"/sessions/{session}/park", json={"reason": "a new fan", **body})


def shown(place: Place, session: str) -> Any:
    return place.house.ask("admin", "GET", f"/sessions/{session}").json()


def parked(place: Place, session: str, who: str = "tom") -> str:
    """It says that it is saved, is stopped, and waits again: the id by which it does."""
    assert place.answer(session, who).json()["state"] == "saved"
    for _ in range(3):
        place.look()
    assert place.states() == {who: "parked"}
    (waits,) = place.house.service.queue.entries.waiting()
    return waits.id


@pytest.mark.parametrize("killed", [False, True])
def test_it_is_saved_rests_and_comes_back_by_itself(
    place: Place, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    def step() -> None:
        if killed:
            place.killed()

    tom = place.full("tom")
    assert shown(place, tom)["park_reason"] is None
    asked = park(place, tom, rest_minutes=30)
    assert asked.status_code == 202
    assert (asked.json()["by"], asked.json()["state"]) == ("admin", "noticed")
    (told,) = place.house.ask("tom", "GET", f"/sessions/{tom}").json()["notices"]
    assert told["code"] == "parking"
    assert told["message"].startswith("admin parks this session: a new fan. Save your work")
    assert "not before" in told["message"]
    step()
    place.look()
    assert place.hub.asked == [], "nobody is stopped who has not said that all is saved"
    assert shown(place, tom)["parking"]["reason"] == "admin parks this session: a new fan."
    assert shown(place, tom)["park_reason"] == "It has notice already."
    again = park(place, tom)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "cannot_park")

    waits = parked(place, tom)
    assert place.hub.asked == [("options", "tom"), ("stop", "tom"), ("start", "tom")]
    assert place.fleet.held == {}, "there is room, and it rests"
    step()
    place.house.service.queue.seen(waits)
    place.house.service.look()
    (line,) = place.house.ask("admin", "GET", "/queue").json()["queue"]
    assert line["place"] is None
    assert line["reason"].startswith("Parked by admin until ")
    assert (line["parked"]["by"], line["parked"]["session"]) == ("admin", tom)
    assert place.full("ursa") in place.fleet.held, "what it held is for others"

    clock = place.house.service.queue.clock
    monkeypatch.setattr(place.house.service.queue, "clock", lambda: clock() + 1801)
    place.house.service.look()
    assert waits in place.fleet.held
    assert place.full("tom") == waits
    place.look()
    assert place.states() == {}


def test_it_is_taken_back_before_it_is_saved_and_let_back_after(place: Place) -> None:
    tom = place.full("tom")
    park(place, tom)
    notice = place.notice(tom)
    taken = place.house.ask("admin", "DELETE", f"/sessions/{tom}/park")
    assert (taken.status_code, taken.json()["state"]) == (200, "void")
    assert place.fleet.told == {}
    assert place.answer(tom, "tom", notice).status_code == 409
    assert place.house.ask("admin", "DELETE", f"/sessions/{tom}/park").status_code == 404

    park(place, tom, rest_minutes=720)
    waits = parked(place, tom)
    assert place.fleet.held == {}
    let = place.house.ask("admin", "DELETE", f"/sessions/{tom}/park")
    assert (let.json()["state"], let.json()["back"]) == ("parked", None)
    place.house.service.look()
    assert waits in place.fleet.held
    rows = place.house.ask("admin", "GET", "/audit").json()["entries"]
    acts = [(row["action"], row["user"], row["why"]) for row in rows if row["action"].endswith("/park")]
    assert acts[-1] == ("POST /sessions/{session}/park", "tom", "a new fan")
    assert [what for what, _, _ in acts].count("DELETE /sessions/{session}/park") == 3


def test_a_start_that_does_not_wish_to_wait_is_told_that_it_rests(place: Place) -> None:
    tom = place.full("tom")
    park(place, tom, rest_minutes=30)
    place.answer(tom, "tom")
    place.house.service.look()
    place.house.service.queue.errands()
    place.house.service.look()
    assert place.states() == {"tom": "parked"}
    refused = place.house.start("tom", "1")
    assert refused.status_code == 409
    assert refused.json()["error"]["message"].startswith("Parked by admin until ")


@pytest.mark.parametrize("outcome", ["failed", "silent"])
def test_who_does_not_save_runs_on_and_that_is_shown(
    place: Place, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    tom = place.full("tom")
    park(place, tom)
    if outcome == "failed":
        assert place.answer(tom, "tom", outcome="failed").json()["state"] == "failed"
    else:
        clock = place.house.service.queue.clock
        monkeypatch.setattr(place.house.service.queue, "clock", lambda: clock() + 61)
    place.look()
    assert place.hub.asked == []
    assert tom in place.fleet.held
    now = shown(place, tom)
    assert (now["parking"]["state"], now["park_reason"], now["notices"]) == (outcome, None, [])
    place.killed()
    assert shown(place, tom)["parking"]["state"] == outcome
    assert park(place, tom).status_code == 202, "it can be asked again at once"
    place.house.ask("hub", "DELETE", f"/sessions/{tom}")
    place.look()
    assert shown(place, tom)["parking"] is None


def test_who_may_and_what_cannot_be_parked(place: Place) -> None:
    tom = place.full("tom")
    assert park(place, tom, "tom").status_code == 403
    assert park(place, tom, "eve").status_code == 404
    assert park(place, "s-none").status_code == 404
    for body in ({"reason": ""}, {"rest_minutes": -1}, {"rest_minutes": 721}, {"rest_minutes": "5"}, {"more": 1}):
        assert park(place, tom, **body).status_code == 422
    none = place.house.start("ann", "none").json()["session"]["id"]
    assert park(place, none).json()["error"]["message"] == "It does not run yet."
    place.fleet.up.add(none)
    place.house.service.look()
    assert park(place, none).json()["error"]["message"] == "It holds no card."
    assert place.fleet.told == {}


def test_where_parking_is_off_that_is_the_reason(tmp_path: Path) -> None:
    house = House(tmp_path, POLICY, MemoryFleet(cards=1))
    tom = house.start("tom", "1").json()["session"]["id"]
    reason = "Parking is switched off here (GPUSPAWNER_PARKING)."
    assert house.ask("admin", "GET", f"/sessions/{tom}").json()["park_reason"] == reason
    refused = house.ask("admin", "POST", f"/sessions/{tom}/park", json={"reason": "x"})
    assert (refused.status_code, refused.json()["error"]["message"]) == (409, reason)


def test_what_the_queue_has_asked_is_not_taken_back_by_hand(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.fleet, "used_bytes", lambda session: 79 << 30)
    tom, tia = place.full("tom"), place.full("tia")
    place.waits("ursa")
    asked = next(iter(place.fleet.told))
    assert asked in (tom, tia)
    refused = place.house.ask("admin", "DELETE", f"/sessions/{asked}/park")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_by_hand")


def test_it_moves_to_the_card_that_is_named(place: Place) -> None:
    tom = place.full("tom")
    there = place.house.ask("admin", "GET", f"/sessions/{tom}/places").json()["places"]
    assert [(each["card"], each["reason"]) for each in there] == [
        ("GPU-0000-01", None),
        ("GPU-0000-00", "It runs here."),
    ]
    assert place.house.ask("tom", "GET", f"/sessions/{tom}/places").status_code == 403
    assert park(place, tom, card="GPU-0000-01").json()["card"] == "GPU-0000-01"
    place.answer(tom, "tom")
    for _ in range(3):
        place.look()
    (grant,) = place.fleet.held.values()
    assert grant.session != tom, "there is room, so it is back at once"
    assert [card.uuid for card in grant.cards] == ["GPU-0000-01"]


def test_where_it_cannot_move_is_refused_with_the_reason(place: Place) -> None:
    tom = place.full("tom")

    def refused(card: str) -> tuple[int, str]:
        answer = park(place, tom, card=card)
        return answer.status_code, answer.json()["error"]["message"]

    assert refused("GPU-none") == (404, "There is no card of that uuid in this fleet.")
    assert refused("GPU-0000-00") == (409, "It runs here.")
    cordon = {"kind": "card", "name": "GPU-0000-01", "reason": "loud"}
    place.house.ask("admin", "POST", "/cordons", json=cordon)
    assert refused("GPU-0000-01") == (409, "Nothing starts on this card now: loud (said by admin).")
    place.house.ask("admin", "POST", "/cordons/lift", json={"kind": "card", "name": "GPU-0000-01"})
    place.house.write(POLICY + "rules:\n- {name: one, allow: {cards: [GPU-0000-00]}}\n")
    status, why = refused("GPU-0000-01")
    assert status == 409
    assert "policy" in why
    place.house.write(POLICY)
    ann = place.house.start("ann", "1/8").json()["session"]["id"]
    assert refused("GPU-0000-01")[0] == 409, "ann is there"
    place.house.ask("hub", "DELETE", f"/sessions/{ann}")
    state = place.fleet.states["GPU-0000-01"]
    object.__setattr__(state, "card", Card("GPU-0000-01", 1, "NVIDIA A100-SXM4-80GB", 80 << 30))
    assert refused("GPU-0000-01") == (409, "It is another model (a100-80gb, not h100-80gb).")
    assert place.fleet.told == {}


def test_a_card_that_is_taken_out_of_use_meanwhile_does_not_keep_it_waiting(place: Place) -> None:
    tom = place.full("tom")
    park(place, tom, card="GPU-0000-01", rest_minutes=10)
    waits = parked(place, tom)
    assert place.house.service.queue.entries.get(waits).card == "GPU-0000-01"  # type: ignore[union-attr]
    place.house.ask("admin", "POST", "/cordons", json={"kind": "card", "name": "GPU-0000-01", "reason": "loud"})
    place.house.ask("admin", "DELETE", f"/sessions/{tom}/park")
    place.house.service.look()
    assert [card.uuid for card in place.fleet.held[waits].cards] == ["GPU-0000-00"]
