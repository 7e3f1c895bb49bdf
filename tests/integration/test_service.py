"""The service with real sessions on simulated cards."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.common import until
from support.machine import Machine, SessionProgram, machine

GIB = 1 << 30
#: What the driver of an 80 GB H100 reports, simulated or not.
CARD = 85_520_809_984

#: In a user namespace of our own, no more of them may be made.
_NO_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("shared")) as made:
        yield made


@pytest.fixture
def node(shared_node: Machine) -> Iterator[Machine]:
    """The machine with nobody on it."""
    yield shared_node
    shared_node.clear()


def fill(program: SessionProgram, chunk: int) -> int:
    """Allocate chunks until refused; how many were given. The refusal must be OUT_OF_MEMORY."""
    count = 0
    while (answer := program(f"allocate({chunk})")) == "CUDA_SUCCESS":
        count += 1
        assert count < 1000
    assert answer == "CUDA_ERROR_OUT_OF_MEMORY"
    return count


def test_the_whole_act(node: Machine) -> None:
    session, program = node.start("ann", "1/8")
    assert (session["share"], session["memory_bytes"], session["simulated"]) == ("1/8", CARD // 8, True)
    assert program("info()[1]") == CARD // 8
    first = fill(program, GIB)
    assert first == 9, "10 GiB less what the context takes"

    grown = node.api.patch(f"/sessions/{session['id']}", json={"share": "1/2"}).json()
    assert grown["session"]["share"] == "1/2"
    assert program("info()[1]") == CARD // 2
    assert first + fill(program, GIB) == 39
    assert program("len(pointers)") == 39

    refused = node.api.patch(f"/sessions/{session['id']}", json={"share": "1/8"})
    assert refused.status_code == 409
    error = refused.json()["error"]
    assert error["code"] == "in_use"
    assert error["need_to_free_bytes"] == error["used_bytes"] - CARD // 8
    assert 39 * GIB < error["used_bytes"] <= CARD // 2
    fill(program, GIB // 64)
    shown = node.api.get(f"/sessions/{session['id']}").json()
    assert shown["share"] == "1/2"
    assert CARD // 2 - GIB // 64 < shown["memory_used_bytes"] <= CARD // 2, "the driver agrees, contexts included"
    assert program("info()[1]") == CARD // 2, "nothing has changed"

    program("free_all()")
    assert node.api.patch(f"/sessions/{session['id']}", json={"share": "1/8"}).status_code == 200
    assert program("info()[1]") == CARD // 8
    kinds = [(row["kind"], row["eighths"]) for row in node.api.get(f"/events?session={session['id']}").json()["events"]]
    assert kinds == [("resize", 1), ("resize", 4), ("start", 1)]


def test_freeing_what_a_refusal_asks_for_is_enough(node: Machine) -> None:
    session, program = node.start("ann", "1/4")
    fill(program, GIB // 2)
    error = node.api.patch(f"/sessions/{session['id']}", json={"share": "1/8"}).json()["error"]
    freed = 0
    while freed < error["need_to_free_bytes"]:
        program("driver.cuMemFree(pointers.pop())[0].name")
        freed += GIB // 2
    assert node.api.patch(f"/sessions/{session['id']}", json={"share": "1/8"}).status_code == 200


def test_the_same_request_gives_the_same_session(node: Machine) -> None:
    body = {"user": "ann", "server": "lab", "share": "1/4"}
    first, second = (node.api.post("/sessions", json=body) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["session"]["id"] == second.json()["session"]["id"]
    assert first.json()["launch"] == second.json()["launch"]
    assert node.free_eighths() == 14


def test_a_session_unknown_to_the_hub_is_replaced(node: Machine) -> None:
    """The hub was killed after it had started the process, and before it noted it."""
    old, program = node.start("ann", "1/4")
    new = node.api.post("/sessions", json={"user": "ann", "share": "1/2"}).json()["session"]
    assert new["id"] != old["id"]
    until(lambda: program.process.poll() is not None, what="the old session's program to end")
    assert node.api.get(f"/sessions/{old['id']}").json()["state"] == "ended"
    assert node.free_eighths() == 12


@pytest.mark.case("hub-7")
def test_three_whole_cards_where_there_are_two(node: Machine) -> None:
    one, _ = node.start("ann", "1")
    two, _ = node.start("bob", "1")
    assert one["cards"][0]["uuid"] != two["cards"][0]["uuid"]
    refused = node.api.post("/sessions", json={"user": "cy", "share": "1"})
    assert refused.status_code == 409
    assert refused.json()["error"]["message"] == "No whole card is free now."
    offers = node.api.get("/offers").json()["offers"]
    assert {offer["available"] for offer in offers} == {False}
    assert all(offer["reason"] for offer in offers)


@pytest.mark.case("hub-8")
def test_a_session_sees_one_card_and_a_session_of_two_sees_two(tmp_path: Path) -> None:
    with machine(tmp_path, "4*a100-40gb") as node:
        _, program = node.start("ann", "1/4")
        assert program("int(driver.cuDeviceGetCount()[1])") == 1
        both, several = node.start("bob", "2")
        assert several("int(driver.cuDeviceGetCount()[1])") == 2
        refused = node.api.patch(f"/sessions/{both['id']}", json={"share": "1/2"})
        assert refused.status_code == 409


def test_a_grow_that_does_not_fit_says_what_is_free(node: Machine) -> None:
    ann, program = node.start("ann", "1/4")
    bob, _ = node.start("bob", "1/2")
    assert bob["cards"] == ann["cards"]
    refused = node.api.patch(f"/sessions/{ann['id']}", json={"share": "1"})
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "no_room"
    assert program("info()[1]") == CARD // 4
    options = {option["share"]: option for option in node.api.get(f"/sessions/{ann['id']}").json()["options"]}
    assert options["1/2"]["available"]
    assert not options["1"]["available"]
    assert options["1"]["reason"] == "Others hold 1/2 of this card."


def test_eighths_come_back_when_the_last_process_is_killed(node: Machine) -> None:
    session, program = node.start("ann", "1/2")
    until(lambda: node.api.get(f"/sessions/{session['id']}").json()["state"] == "running", what="running")
    assert node.free_eighths() == 12
    program.kill()
    until(lambda: node.api.get(f"/sessions/{session['id']}").json()["state"] == "ended", what="the session to end")
    assert node.free_eighths() == 16
    rows = node.api.get(f"/events?session={session['id']}").json()["events"]
    assert [row["kind"] for row in rows] == ["free", "end", "start"]


def test_kill_9_of_the_service_loses_nothing(node: Machine) -> None:
    session, program = node.start("ann", "1/4")
    assert program(f"allocate({GIB})") == "CUDA_SUCCESS"
    until(lambda: node.api.get(f"/sessions/{session['id']}").json()["state"] == "running", what="running")
    gone, doomed = node.start("bob", "1/2")
    until(lambda: node.api.get(f"/sessions/{gone['id']}").json()["state"] == "running", what="running")
    node.kill_service()
    assert program(f"allocate({GIB})") == "CUDA_SUCCESS", "the kernel goes on"
    doomed.kill()
    node.start_service()
    assert node.api.get(f"/sessions/{session['id']}").json()["share"] == "1/4"
    assert program("info()[1]") == CARD // 4
    until(lambda: node.free_eighths() == 14, what="bob's eighths")
    assert node.api.patch(f"/sessions/{session['id']}", json={"share": "1/2"}).status_code == 200
    assert program("info()[1]") == CARD // 2


def test_where_no_namespace_can_be_made_sessions_are_advisory_and_say_so(tmp_path: Path) -> None:
    if os.geteuid() == 0:  # as in a usual container
        prefix = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
    else:
        prefix = ["unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", _NO_NAMESPACES, "sh"]
    with machine(tmp_path, "1*h100-80gb", prefix) as node:
        session, program = node.start("ann", "1/8")
        assert session["grade"] == "advisory"
        assert program("os.getuid()") == os.geteuid()
        assert node.api.patch(f"/sessions/{session['id']}", json={"share": "1/4"}).status_code == 200
        assert program("info()[1]") == CARD // 4
        program.kill()
        until(lambda: node.free_eighths() == 8, what="the eighths")


@pytest.mark.parametrize(
    "share",
    [True, None, 0.125, 1, "1/3", "-1/8", "9/8", "1e999", "NaN", ["1/8"], {"a": 1}, "", "1/8 ", "65"],
    ids=repr,
)
def test_malformed_shares_are_refused_and_change_nothing(shared_node: Machine, share: object) -> None:
    before = shared_node.free_eighths()
    answer = shared_node.api.post("/sessions", json={"user": "mallory", "share": share})
    assert answer.status_code == 422, answer.text
    error = answer.json()["error"]
    assert error["field"] == "share"
    assert "1/8, 1/4, 1/2" in error["message"]
    assert shared_node.free_eighths() == before


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"[]", 422),
        (b'{"share": NaN, "user": "x"}', 422),
        (b'{"share": "1/8"}', 422),
        (b'{"share": "1/8", "user": 7}', 422),
        (b'{"share": "1/8", "user": "x", "nodes": 3}', 422),
        (b'{"share": "1/8", "user": "x", "model": ["h100"]}', 422),
        (b'{"share": "1/8", "user": "x", "model": "A100!"}', 422),
        (b'{"share": "1/8", "user": "x", "model": "a100"}', 404),
        (b'{"share": "' + b"1" * 10_000_000 + b'", "user": "x"}', 413),
        (b"\xff\xfe", 422),
        (b'{"share": "1/8", "user": "' + b"x" * 300 + b'"}', 422),
        (b"[" * 60_000, 400),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_malformed_bodies(shared_node: Machine, content: bytes, status: int) -> None:
    answer = shared_node.api.post("/sessions", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text[:300]
    assert answer.json()["error"]["message"]
    assert shared_node.free_eighths() == 16


def test_nobody_without_a_token_sees_anything(shared_node: Machine) -> None:
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": "Basic eDp5"}):
        assert shared_node.api.get("/sessions", headers=headers).status_code == 401
    assert shared_node.api.get("/health", headers={"Authorization": ""}).status_code == 200
    # No hub answers on this machine: that is said, and is no 500.
    assert shared_node.api.get("/sessions", headers={"Authorization": "Bearer abc"}).status_code == 503


def test_the_ledger_is_append_only(node: Machine) -> None:
    node.start("ann", "1/8")
    with sqlite3.connect(node.state / "service" / "service.sqlite") as database:
        for statement in ("UPDATE ledger SET eighths = 0", "DELETE FROM ledger"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                database.execute(statement)


@pytest.mark.case("hub-12")
def test_names_in_any_script_get_homes_of_their_own(node: Machine) -> None:
    homes = set()
    for user in ("Ann@Example.org", "ann example.org", "用户", "../../etc", "ann", "ANN"):
        answer = node.api.post("/sessions", json={"user": user, "share": "1/8"})
        assert answer.status_code == 201, answer.text
        homes.add(answer.json()["launch"]["home"])
    assert len(homes) == 6
    assert {str(Path(home).parent) for home in homes} == {str(node.state / "users")}


@pytest.mark.case("hub-8")
def test_a_session_without_a_card_sees_none(node: Machine) -> None:
    answer = node.api.post("/sessions", json={"user": "cpu", "share": "none"})
    assert answer.status_code == 201, answer.text
    session, launch = answer.json()["session"], answer.json()["launch"]
    assert (session["share"], session["eighths"], session["cards"], session["model"]) == ("none", 0, [], "")
    assert (session["memory_bytes"], session["memory_used_bytes"], session["price_per_hour"]) == (0, 0, "0.00")
    assert (session["resizable"], session["options"]) == (False, [])
    assert launch["env"]["CUDA_VISIBLE_DEVICES"] == ""
    program = SessionProgram(launch)
    node.programs.append(program)
    program("import pynvml; from cuda.bindings import driver")
    assert program("(pynvml.nvmlInit(), pynvml.nvmlDeviceGetCount())[1]") == 0
    assert program("driver.cuInit(0)[0].name") == "CUDA_ERROR_NO_DEVICE"
    # who unsets the variable finds no card either
    program("import os; del os.environ['CUDA_VISIBLE_DEVICES']")
    program("del driver; import subprocess, sys")
    source = (
        "from cuda.bindings import driver as d; "
        "print(d.cuInit(1)[0].name, d.cuInit(0)[0].name, d.cuDeviceGetCount()[0].name, d.cuDeviceGet(0)[0].name)"
    )
    said = program(f"subprocess.run([sys.executable, '-c', {source!r}], capture_output=True, text=True).stdout")
    assert said.split() == ["CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_NO_DEVICE", *["CUDA_ERROR_NOT_INITIALIZED"] * 2]
    assert node.free_eighths() == 16
    for share in ("1/8", "none"):
        refused = node.api.patch(f"/sessions/{session['id']}", json={"share": share})
        assert refused.status_code in (409, 422), refused.text
    assert node.api.patch(f"/sessions/{session['id']}", json={"burst": True}).status_code == 409
    assert node.api.get(f"/sessions/{session['id']}").json()["burst"] is False
    until(lambda: node.api.get(f"/sessions/{session['id']}").json()["state"] == "running", what="it to run")
    node.kill_service()
    node.start_service()
    assert node.api.get(f"/sessions/{session['id']}").json()["state"] == "running"
    node.api.delete(f"/sessions/{session['id']}")
    until(lambda: node.api.get(f"/sessions/{session['id']}").json()["state"] == "ended", what="it to end")
    rows = node.api.get("/events", params={"session": session["id"]}).json()["events"]
    assert [(row["kind"], row["eighths"], row["price_per_hour"]) for row in rows] == [
        ("free", 0, "0.00"),
        ("end", 0, "0.00"),
        ("start", 0, "0.00"),
    ]


def test_an_exact_card_is_refused_unless_it_may_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    with machine(tmp_path / "node", env={"GPUSPAWNER_CHOOSE_CARD": "yes"}) as node:
        cards = node.api.get("/offers").json()["cards"]
        assert [(card["index"], card["free_eighths"]) for card in cards] == [(0, 8), (1, 8)]
        asked = {"user": "ann", "share": "1/8", "card": cards[1]["uuid"]}
        session = node.api.post("/sessions", json=asked).json()["session"]
        assert [card["uuid"] for card in session["cards"]] == [cards[1]["uuid"]]
        assert [card["free_eighths"] for card in node.api.get("/offers").json()["cards"]] == [8, 7]
        several = node.api.post("/sessions", json={**asked, "user": "bob", "share": "2"})
        assert (several.status_code, several.json()["error"]["field"]) == (422, "card")
        unknown = node.api.post("/sessions", json={**asked, "user": "bob", "card": "GPU-no-such-card"})
        assert (unknown.status_code, unknown.json()["error"]["field"]) == (404, "card")


def test_no_exact_card_by_default(node: Machine) -> None:
    assert node.api.get("/offers").json()["cards"] is None
    refused = node.api.post("/sessions", json={"user": "ann", "share": "1/8", "card": "GPU-1"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "card")
    assert node.free_eighths() == 16
