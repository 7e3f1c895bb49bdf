"""Cards and nodes out of use: nothing new, drains, restarts, who may."""

from pathlib import Path

import pytest
from support.memory_fleet import House, MemoryFleet

from gpuspawner.service.cordons import CordonBook


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path, fleet=MemoryFleet(nodes=2, cards=1))


def cordon(house: House, who: str = "admin", **more: object) -> object:
    body = {"kind": "card", "name": "GPU-0000-00", "reason": "a fan is loud", **more}
    return house.ask(who, "POST", "/cordons", json=body)


def test_nothing_starts_on_a_cordoned_card_and_what_runs_stays(house: House) -> None:
    before = house.start("ann").json()["session"]
    assert before["cards"][0]["uuid"] == "GPU-0000-00"
    made = cordon(house)
    assert made.status_code == 201
    assert (made.json()["by"], made.json()["reason"], made.json()["ends"]) == ("admin", "a fan is loud", None)
    assert house.start("bob").json()["session"]["cards"][0]["uuid"] == "GPU-0001-00"
    assert house.ask("ann", "GET", f"/sessions/{before['id']}").json()["state"] == "starting"
    named = house.start("cee", card="GPU-0000-00")
    assert (named.status_code, named.json()["error"]["code"]) == (409, "no_room")
    assert "a fan is loud (said by admin)" in named.json()["error"]["message"]


def test_nothing_grows_there_but_shrinks(house: House) -> None:
    session = house.start("ann", "1/4").json()["session"]
    cordon(house)
    grown = house.ask("ann", "PATCH", f"/sessions/{session['id']}", json={"share": "1/2"})
    assert (grown.status_code, grown.json()["error"]["code"]) == (409, "cordoned")
    options = house.ask("ann", "GET", f"/sessions/{session['id']}").json()["options"]
    assert [each["available"] for each in options] == [True, True, False, False]
    assert "a fan is loud" in options[-1]["reason"]
    assert house.ask("ann", "PATCH", f"/sessions/{session['id']}", json={"share": "1/8"}).status_code == 200


def test_lifting_gives_it_back_and_is_refused_twice(house: House) -> None:
    cordon(house)
    target = {"kind": "card", "name": "GPU-0000-00"}
    assert house.ask("admin", "POST", "/cordons/lift", json=target).status_code == 200
    assert house.ask("admin", "GET", "/cordons").json()["cordons"] == []
    assert house.start("ann").json()["session"]["cards"][0]["uuid"] == "GPU-0000-00"
    again = house.ask("admin", "POST", "/cordons/lift", json=target)
    assert (again.status_code, again.json()["error"]["field"]) == (404, "name")


def test_a_node_means_all_its_cards(house: House) -> None:
    assert cordon(house, kind="node", name="n1").status_code == 201
    free = {state.card.uuid: state.free_eighths for state in house.fleet.cards()}
    assert free == {"GPU-0000-00": 8, "GPU-0001-00": 0}


def test_a_drain_tells_then_ends_and_a_lift_in_time_undoes_it(house: House) -> None:
    session = house.start("ann").json()["session"]
    other = house.start("bob", card="GPU-0001-00").json()["session"]
    cordon(house, drain_seconds=3600)
    (notice,) = house.ask("ann", "GET", f"/sessions/{session['id']}").json()["notices"]
    assert notice["code"] == "drain"
    assert notice["deadline"] is not None
    house.service.look()
    assert house.service.store.session(session["id"]).state != "ended"
    cordon(house, drain_seconds=0)
    house.service.look()
    ended = house.service.store.session(session["id"])
    assert (ended.state, ended.end_reason) == ("ended", "its card was drained: a fan is loud")
    assert house.service.store.session(other["id"]).state != "ended"
    assert house.ask("admin", "GET", f"/events?session={session['id']}").json()["events"][1]["actor"] == "admin"


def test_a_restart_forgets_none(house: House) -> None:
    cordon(house, drain_seconds=60)
    fresh = MemoryFleet(nodes=2, cards=1)
    kept = CordonBook(house.store, fresh)  # type: ignore[arg-type]
    assert kept.all() == house.service.cordons.all()
    assert fresh.cards(["GPU-0000-00"])[0].free_eighths == 0


@pytest.mark.parametrize("path", ["/cordons", "/cordons/lift"])
def test_only_administrators_and_every_attempt_is_in_the_audit(house: House, path: str) -> None:
    body = {"kind": "card", "name": "GPU-0000-00"} | ({"reason": "why not"} if path == "/cordons" else {})
    assert house.ask("ann", "POST", path, json=body).status_code == 403
    (row,) = house.ask("admin", "GET", "/audit").json()["entries"]
    assert (row["actor"], row["action"], row["asked"]["name"], row["status"]) == (
        "ann",
        f"POST {path}",
        "GPU-0000-00",
        403,
    )
    assert house.ask("ann", "GET", "/cordons").status_code == 403


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"kind": "fleet"}, "kind"),
        ({"name": ""}, "name"),
        ({"reason": ""}, "reason"),
        ({"drain_seconds": -1}, "drain_seconds"),
        ({"drain_seconds": True}, "drain_seconds"),
        ({"more": 1}, "more"),
    ],
)
def test_bad_input_names_the_field(house: House, bad: dict[str, object], field: str) -> None:
    answer = cordon(house, **bad)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)


def test_what_is_not_there_cannot_be_cordoned(house: House) -> None:
    assert cordon(house, name="GPU-9").status_code == 404
    assert cordon(house, kind="node", name="GPU-0000-00").status_code == 404
