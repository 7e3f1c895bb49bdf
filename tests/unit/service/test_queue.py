"""The queue at the service: who waits, who gives way, and what a restart finds."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.common import until
from support.memory_fleet import House, MemoryFleet

from gpuspawner.service.waiting.entries import Entry, Wish
from gpuspawner.share import GPUShare

CLASSES = """
version: 1
queue:
- {groups: [serving], default: interactive, highest: inference-urgent}
- {users: [tom], default: training}
"""


class Fleet(MemoryFleet):
    """Sessions without processes yet."""

    def alive(self, session: str) -> bool:
        return False


def house(folder: Path, fleet: MemoryFleet | None = None, policy: str | None = CLASSES) -> House:
    return House(folder, policy, fleet or Fleet(cards=1), ursa={"serving"})


def entry(of: House, session: str, who: str = "hub") -> Any:
    return of.ask(who, "GET", f"/queue/{session}").json()


def kinds(of: House, session: str) -> list[tuple[str, int, str]]:
    rows = of.ask("admin", "GET", f"/events?session={session}").json()["events"]
    return [(row["kind"], row["eighths"], row["actor"]) for row in reversed(rows)]


def test_who_finds_no_room_is_refused_or_waits_as_it_wishes_and_is_let_in_when_somebody_ends(tmp_path: Path) -> None:
    at = house(tmp_path)
    ann = at.start("ann", "1").json()["session"]
    refused = at.start("bob", "1/2")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "no_room")

    answer = at.start("bob", "1/2", wait=True)
    assert answer.status_code == 202
    bob = answer.json()["waiting"]
    assert (bob["state"], bob["place"], bob["share"], bob["kind"]) == ("waiting", 1, "1/2", "interactive")
    assert bob["reason"] == "All of it is in use now."
    assert (bob["expected_low_seconds"], bob["expected_high_seconds"]) == (None, None), "nobody knows yet"
    second = at.start("cyd", "1/2", wait=True).json()["waiting"]
    assert (second["place"], second["reason"]) == (2, "All of it is in use now. 1 is before this one.")
    assert at.start("bob", "1/2", wait=True).json()["waiting"]["id"] == bob["id"], "asked again it is the same"

    at.ask("hub", "DELETE", f"/sessions/{ann['id']}")
    at.service.look()
    assert entry(at, bob["id"])["state"] == "placed"
    started = at.start("bob", "1/2", wait=True)
    assert started.json()["session"]["id"] == bob["id"]
    assert entry(at, second["id"])["state"] == "placed"
    assert at.fleet.states["GPU-0000-00"].free_eighths == 0


def test_nobody_passes_those_who_wait(tmp_path: Path) -> None:
    at = house(tmp_path, Fleet(cards=2))
    one, two = (at.start(name, "1").json()["session"] for name in ("ann", "abe"))
    waits = at.start("bob", "1", wait=True).json()["waiting"]
    at.fleet.end(one["id"], "")  # a place is free, and the service has not looked yet
    refused = at.start("cyd", "1")
    assert refused.status_code == 409
    assert entry(at, waits["id"])["state"] == "placed"
    assert at.service.queue.outlook.places() == [], "who did not wish to wait is not in the queue"
    assert two["id"] in at.fleet.held


def test_the_urgent_take_from_the_less_urgent_at_once_who_get_it_back(tmp_path: Path) -> None:
    at = house(tmp_path)
    tom = at.start("tom", "1/2").json()["session"]
    ann = at.start("ann", "1/2").json()["session"]
    assert (tom["kind"], ann["kind"]) == ("training", "interactive")
    urgent = at.start("ursa", "1/4", wait=True, kind="inference-urgent")
    assert urgent.status_code == 201, "making smaller was enough"
    shares = {name: at.fleet.held[name].eighths_per_card for name in (tom["id"], ann["id"])}
    assert shares == {tom["id"]: 2, ann["id"]: 4}, "training gives way before interactive work"
    assert kinds(at, tom["id"])[-1] == ("resize", 2, "queue")
    (notice,) = at.ask("tom", "GET", f"/sessions/{tom['id']}").json()["notices"]
    assert notice["code"] == "made_smaller"
    assert "Made smaller to 1/4 of the card" in notice["message"]
    assert "grows back to 1/2" in notice["message"]

    at.ask("hub", "DELETE", f"/sessions/{urgent.json()['session']['id']}")
    at.service.look()
    assert at.fleet.held[tom["id"]].eighths_per_card == 4
    assert [row[1] for row in kinds(at, tom["id"])] == [4, 2, 4]
    assert at.ask("tom", "GET", f"/sessions/{tom['id']}").json()["notices"] == []
    assert not at.service.queue._busy


def test_what_a_user_chooses_meanwhile_is_what_they_get_back(tmp_path: Path) -> None:
    at = house(tmp_path)
    tom = at.start("tom", "1").json()["session"]
    urgent = at.start("ursa", "1/2", wait=True, kind="inference-urgent").json()["session"]
    assert at.fleet.held[tom["id"]].eighths_per_card == 4
    assert at.ask("tom", "PATCH", f"/sessions/{tom['id']}", json={"share": "1/4"}).status_code == 200
    at.ask("hub", "DELETE", f"/sessions/{urgent['id']}")
    at.service.look()
    assert at.fleet.held[tom["id"]].eighths_per_card == 2


def test_memory_in_use_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = house(tmp_path)
    tom = at.start("tom", "1").json()["session"]
    monkeypatch.setattr(at.fleet, "used_bytes", lambda session: 50 << 30)  # of 80: no less than a whole card
    waits = at.start("ursa", "1/4", wait=True, kind="inference-urgent")
    assert waits.status_code == 202
    assert at.fleet.held[tom["id"]].eighths_per_card == 8
    monkeypatch.setattr(at.fleet, "used_bytes", lambda session: 30 << 30)
    at.service.look()
    assert entry(at, waits.json()["waiting"]["id"])["state"] == "placed"
    assert at.fleet.held[tom["id"]].eighths_per_card == 4


@pytest.mark.parametrize(
    ("who", "asked", "given"),
    [
        ("ann", None, "interactive"),
        ("ann", "batch", "batch"),
        ("ann", "inference-urgent", None),
        ("ursa", None, "interactive"),
        ("ursa", "inference-urgent", "inference-urgent"),
        ("tom", None, "training"),
        ("tom", "interactive", None),
    ],
)
def test_the_policy_says_who_is_of_which_class(tmp_path: Path, who: str, asked: str | None, given: str | None) -> None:
    answer = house(tmp_path).start(who, "1/8", wait=True, kind=asked)
    if given is None:
        assert answer.status_code == 403
        assert (answer.json()["error"]["code"], answer.json()["error"]["field"]) == ("policy", "kind")
    else:
        assert answer.json()["session"]["kind"] == given


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("wait", "yes"),
        ("kind", "first"),
        ("run_seconds", 0),
        ("run_seconds", "1e3"),
        ("deadline", "2020-01-01T00:00:00Z"),
        ("deadline", "2120-01-01T00:00:00"),
    ],
)
def test_what_means_nothing_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    answer = house(tmp_path).start("ann", "1/8", **{field: value})
    assert answer.status_code == 422
    assert answer.json()["error"]["field"].startswith(field)


def test_what_can_never_start_does_not_wait(tmp_path: Path) -> None:
    answer = house(tmp_path).start("ann", "2", wait=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_room")
    assert "only 1 such card" in answer.json()["error"]["message"]
    assert house(tmp_path).start("ann", "a100:1", wait=True).status_code == 404


def test_people_see_their_own_place_and_may_give_it_up(tmp_path: Path) -> None:
    at = house(tmp_path)
    at.start("ann", "1")
    bob, cyd = (at.start(name, "1", wait=True).json()["waiting"]["id"] for name in ("bob", "cyd"))
    assert [each["id"] for each in at.ask("admin", "GET", "/queue").json()["queue"]] == [bob, cyd]
    own = at.ask("cyd", "GET", "/queue").json()
    assert ([each["id"] for each in own["queue"]], own["queue"][0]["place"], own["length"]) == ([cyd], 2, 2)
    assert at.ask("bob", "GET", f"/queue/{cyd}").status_code == 404
    assert at.ask("bob", "DELETE", f"/sessions/{cyd}").status_code == 404
    assert at.ask("server:bob/", "DELETE", f"/sessions/{cyd}").status_code == 404
    assert at.client.get("/queue").status_code == 401
    assert at.ask("cyd", "DELETE", f"/sessions/{cyd}").json()["state"] == "waiting"
    gone = at.ask("hub", "GET", f"/queue/{cyd}")
    assert (gone.status_code, gone.json()["error"]["message"]) == (404, "Its place in the queue was given up by cyd.")
    assert at.ask("admin", "GET", "/queue").json()["length"] == 1


def test_another_service_finds_who_waited_and_in_which_order(tmp_path: Path) -> None:
    fleet = Fleet(cards=1)
    at = house(tmp_path, fleet)
    ann = at.start("ann", "1").json()["session"]
    bob, cyd = (at.start(name, "1/2", wait=True).json()["waiting"]["id"] for name in ("bob", "cyd"))
    tom = at.start("tom", "1/2", wait=True).json()["waiting"]["id"]
    after = house(tmp_path, fleet)
    fleet.end(ann["id"], "")
    after.service.look()
    assert entry(after, bob)["state"] == "waiting", "its hub may be gone: nothing is started before it asks"
    for session in (tom, cyd, bob):
        entry(after, session)
    after.service.look()
    assert [entry(after, session)["state"] for session in (bob, cyd, tom)] == ["placed", "placed", "waiting"]
    assert set(fleet.held) == {bob, cyd}


def test_a_service_killed_between_a_start_and_its_writing_starts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(cards=1)
    at = house(tmp_path, fleet)
    ann = at.start("ann", "1").json()["session"]
    bob = at.start("bob", "1", wait=True).json()["waiting"]["id"]
    fleet.end(ann["id"], "")

    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(at.service.queue.entries, "change", killed)
    with pytest.raises(Killed):
        at.service.look()
    after = house(tmp_path, fleet)
    assert entry(after, bob)["state"] == "placed"
    again = after.start("bob", "1", wait=True)
    assert again.json()["session"]["id"] == bob
    assert list(fleet.held) == [bob]
    assert [row[0] for row in kinds(after, bob)] == ["start"]


@pytest.mark.parametrize("when", ["before the limit", "after the limit", "before the start"])
def test_a_service_killed_while_it_takes_from_somebody_loses_no_eighth_and_takes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    fleet = Fleet(cards=1)
    at = house(tmp_path, fleet)
    tom = at.start("tom", "1").json()["session"]["id"]
    real, start = fleet.resize, fleet.start

    class Killed(BaseException):
        pass

    def killed(*given: Any, **more: Any) -> None:
        if when == "after the limit":
            real(*given, **more)
        if when == "before the start" and not fleet.states["GPU-0000-00"].free_eighths:
            start(*given, **more)  # which finds no room
        raise Killed

    wish = Wish(wait=True, kind="inference-urgent")
    with monkeypatch.context() as now:
        now.setattr(fleet, "start" if when == "before the start" else "resize", killed)
        with pytest.raises(Killed):
            at.service.start("ursa", "", GPUShare(2), "hub", wish=wish)
    after = house(tmp_path, fleet)
    assert [each["user"] for each in after.ask("hub", "GET", "/queue").json()["queue"]] == ["ursa"]
    started = after.start("ursa", "1/4", wait=True, kind="inference-urgent")
    assert started.status_code == 201
    urgent = started.json()["session"]["id"]
    assert {name: grant.eighths_per_card for name, grant in fleet.held.items()} == {tom: 4, urgent: 2}
    assert [row[:2] for row in kinds(after, tom)] == [("start", 8), ("resize", 4)]
    after.ask("hub", "DELETE", f"/sessions/{urgent}")
    after.service.look()
    assert fleet.held[tom].eighths_per_card == 8
    assert [row[:2] for row in kinds(after, tom)] == [("start", 8), ("resize", 4), ("resize", 8)]
    assert len(after.ask("hub", "GET", "/queue").json()["queue"]) == 0


def test_a_clock_set_back_changes_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = house(tmp_path)
    ann = at.start("ann", "1").json()["session"]
    bob = at.start("bob", "1", wait=True).json()["waiting"]["id"]
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 86400)
    monkeypatch.setattr(time, "time_ns", lambda: int((real() - 86400) * 1e9))
    after = house(tmp_path, at.fleet)
    cyd = after.start("cyd", "1", wait=True).json()["waiting"]
    assert (cyd["place"], entry(after, bob)["place"]) == (1, None), "bob's hub has not asked yet"
    after.service.look()
    assert (entry(after, bob)["place"], entry(after, cyd["id"])["place"]) == (1, 2)
    assert 0 <= entry(after, bob)["waited_seconds"] < 60
    after.ask("hub", "DELETE", f"/sessions/{ann['id']}")
    after.service.look()
    assert (entry(after, bob)["state"], entry(after, cyd["id"])["state"]) == ("placed", "waiting")


def test_who_is_not_allowed_a_card_does_not_take_from_those_on_it(tmp_path: Path) -> None:
    policy = """
version: 1
rules:
- {name: all, allow: {cards: [GPU-0000-00]}}
- {name: serving, groups: [serving], allow: {cards: [GPU-0000-01]}}
queue:
- {groups: [serving], default: inference-urgent}
- {users: [tom], default: training}
"""
    at = house(tmp_path, Fleet(cards=2), policy)
    tom = at.start("tom", "1").json()["session"]
    assert tom["cards"][0]["uuid"] == "GPU-0000-00"
    abe = at.start("abe", "1/2", wait=True)
    assert abe.status_code == 202 or at.fleet.held[tom["id"]].eighths_per_card == 4
    ursa = at.start("ursa", "1", wait=True).json()["session"]
    assert ursa["cards"][0]["uuid"] == "GPU-0000-01"
    waits = at.start("bob", "1", wait=True)
    assert waits.status_code == 202
    assert at.fleet.held[ursa["id"]].eighths_per_card == 8


def test_two_urgent_ones_do_not_take_from_each_other(tmp_path: Path) -> None:
    at = house(tmp_path)
    at.start("ursa", "1", wait=True, kind="inference-urgent")
    waits = at.start("ursa", "1/2", server="two", wait=True, kind="inference-urgent")
    assert waits.status_code == 202


def test_what_idleness_took_comes_back_when_there_is_room(tmp_path: Path) -> None:
    at = house(tmp_path)
    ann = at.start("ann", "1/2").json()["session"]["id"]
    at.service._shrink(ann, GPUShare(1), "idle")
    bob = at.start("bob", "1/2").json()["session"]["id"]
    cyd = at.start("cyd", "1/4").json()["session"]["id"]
    at.service.queue.give_back(ann, GPUShare(4))
    assert at.fleet.held[ann].eighths_per_card == 2, "as far as there is room"
    at.ask("hub", "DELETE", f"/sessions/{cyd}")
    at.service.look()
    assert at.fleet.held[ann].eighths_per_card == 4
    assert at.fleet.held[bob].eighths_per_card == 4
    assert not at.service.queue._busy


def test_a_storm_of_urgent_requests_takes_what_can_be_spared_and_no_more(tmp_path: Path) -> None:
    at = House(tmp_path, CLASSES, Fleet(cards=2), **{f"u{number}": {"serving"} for number in range(1000)})
    running = [at.start(*each).json()["session"]["id"] for each in (("tom", "1"), ("ann", "1/2"), ("abe", "1/2"))]

    wish = Wish(wait=True, kind="inference-urgent")

    def ask(number: int) -> bool:
        found = at.service.start(f"u{number}", "", GPUShare(1), "hub", wish=wish)
        return isinstance(found, Entry)

    queue = at.service.queue
    with ThreadPoolExecutor(16) as pool:
        with queue._deciding:  # the first sixteen come together, whatever turns their threads take
            asked = [pool.submit(ask, number) for number in range(1000)]
            until(lambda: len(queue.entries.waiting()) == 16, 60, "sixteen in the queue")
        waits = [each.result() for each in asked]
    shares = [at.fleet.held[session].eighths_per_card for session in running]
    assert shares == [1, 1, 1], "down to the floor of each, and nobody is stopped"
    assert len(at.fleet.held) == 3 + 13
    assert at.ask("admin", "GET", "/queue").json()["length"] == 1000 - 13
    assert waits.count(False) == 13
    assert all(len(kinds(at, session)) <= 4 for session in running), "each was asked a few times at most"


PRIORITIES = (
    CLASSES
    + """
rules:
- {name: all, allow: {}}
- {name: leads, users: [lea], over: {groups: [lab]}, rights: [telemetry, prioritise]}
"""
)


def waits(of: House, *users: str) -> list[str]:
    """A card that is taken, and who waits for it: their ids."""
    of.start("ann", "1")
    return [of.start(user, "1", wait=True).json()["waiting"]["id"] for user in users]


def in_line(of: House) -> list[tuple[str, str]]:
    return [(each["user"], each["kind"]) for each in of.ask("admin", "GET", "/queue").json()["queue"]]


def change(of: House, who: str, session: str, **body: Any) -> Any:
    return of.ask(who, "PATCH", f"/queue/{session}", json={"reason": "a talk at noon", **body})


def test_an_administrator_says_who_goes_first_and_a_restart_keeps_it(tmp_path: Path) -> None:
    at = house(tmp_path)
    bob, cyd = waits(at, "bob", "cyd")
    assert in_line(at) == [("bob", "interactive"), ("cyd", "interactive")]
    now = change(at, "admin", cyd, deadline="2100-01-01T00:00:00+00:00").json()
    assert (now["place"], now["deadline"]) == (1, "2100-01-01T00:00:00.000+00:00"), "the earliest deadline first"
    assert (now["changed_by"], now["changed_reason"]) == ("admin", "a talk at noon")
    assert change(at, "admin", cyd, deadline=None, kind="batch").json()["place"] == 2
    assert in_line(at) == [("bob", "interactive"), ("cyd", "batch")]
    assert at.start("cyd", "1", wait=True).json()["waiting"]["id"] == cyd, "its hub asks for what it asked for before"
    row = at.ask("admin", "GET", "/audit").json()["entries"][1]
    assert (row["action"], row["user"], row["session"]) == ("PATCH /queue/{session}", "cyd", cyd)
    assert (row["why"], row["status"]) == ("a talk at noon", 200)

    at.engine.dispose()
    again = House(tmp_path, CLASSES, at.fleet)
    assert [(row.user, row.kind, row.changed_by) for row in again.service.queue.entries.waiting()] == [
        ("bob", "interactive", None),
        ("cyd", "batch", "admin"),
    ]
    assert again.start("cyd", "1", wait=True).json()["waiting"]["id"] == cyd
    assert bob != cyd


def test_who_is_made_more_urgent_takes_from_the_less_urgent_at_once(tmp_path: Path) -> None:
    at = house(tmp_path)
    tom = at.start("tom", "1").json()["session"]["id"]
    tia = at.start("tia", "1/2", wait=True, kind="batch").json()["waiting"]["id"]
    made = change(at, "admin", tia, kind="inference-urgent").json()
    assert made["state"] == "placed"
    assert {name: grant.eighths_per_card for name, grant in at.fleet.held.items()} == {tom: 4, tia: 4}
    refused = change(at, "admin", tia, kind="batch")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_waiting")
    assert at.start("tia", "1/2", wait=True).json()["session"]["kind"] == "inference-urgent"


def test_who_may_say_who_goes_first(tmp_path: Path) -> None:
    at = House(tmp_path, PRIORITIES, Fleet(cards=1), bob={"lab"}, ursa={"serving"})
    bob, ursa = waits(at, "bob", "ursa")
    assert change(at, "bob", bob, kind="batch").status_code == 403, "not oneself, unless a rule says so"
    assert change(at, "eve", bob, kind="batch").status_code == 404
    assert change(at, "lea", bob, kind="training").json()["changed_by"] == "lea", "she is over the lab"
    assert change(at, "server:lea/", bob, kind="batch").status_code == 404, "a server's token is not enough"
    at.write(PRIORITIES.replace("lea]", "lea, bob]").replace("over: {groups: [lab]}, ", ""))
    assert change(at, "bob", bob, kind="training").json()["kind"] == "training"
    refused = change(at, "bob", bob, kind="inference-urgent")
    assert (refused.status_code, refused.json()["error"]["field"]) == (403, "kind")
    assert change(at, "admin", bob, kind="inference-urgent").status_code == 200
    at.write(CLASSES)
    assert change(at, "ursa", ursa, kind="batch").status_code == 403, "without rules only administrators"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "kind"),
        ({"kind": "soon"}, "kind"),
        ({"kind": "batch", "reason": ""}, "reason"),
        ({"kind": "batch", "reason": "x" * 256}, "reason"),
        ({"deadline": "2020-01-01T00:00:00+00:00"}, "deadline"),
        ({"deadline": "2100-01-01T00:00:00"}, "deadline"),
        ({"deadline": "tomorrow"}, "deadline"),
        ({"share": "1/2"}, "share"),
    ],
)
def test_bad_changes_of_the_queue(tmp_path: Path, body: dict[str, Any], field: str) -> None:
    at = house(tmp_path)
    (bob,) = waits(at, "bob")
    answer = change(at, "admin", bob, **body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)
    assert in_line(at) == [("bob", "interactive")]
    assert change(at, "admin", "s-none", kind="batch").status_code == 404


def test_the_same_change_with_one_key_is_made_once(tmp_path: Path) -> None:
    at = house(tmp_path)
    (bob,) = waits(at, "bob")
    once = {"headers": {"Idempotency-Key": "12345678"}, "json": {"kind": "batch", "reason": "x"}}
    assert at.ask("admin", "PATCH", f"/queue/{bob}", **once).json()["kind"] == "batch"
    change(at, "admin", bob, kind="training")
    again = at.ask("admin", "PATCH", f"/queue/{bob}", **once)
    assert (again.json()["kind"], again.headers["Idempotency-Replayed"]) == ("batch", "true")
    assert in_line(at) == [("bob", "training")]
