"""Attacks on the service: bodies that break it, storms on one session and card, records that cannot be written."""

from __future__ import annotations

import concurrent.futures
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.common import until
from support.machine import SERVICE_TOKEN, Machine, machine

from gpuspawner.node.limits import abi
from gpuspawner.node.limits.launch import session_alive

EIGHTHS = {"1/8": 1, "1/4": 2, "1/2": 4, "1": 8}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("node"), "1*h100-80gb") as made:
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, "2*h100-80gb") as made:
        yield made


def records(node: Machine) -> list[tuple[str, str, int, str]]:
    """(session, card, eighths, state) as the node has it on disk."""
    with sqlite3.connect(f"file:{node.state}/node/agent.sqlite?mode=ro", uri=True) as database:
        rows = database.execute("SELECT session, cards, eighths, state FROM records").fetchall()
    return [(session, card, eighths, state) for session, cards, eighths, state in rows for card in json.loads(cards)]


def limits(node: Machine) -> Counter[str]:
    """Eighths in force by card, as the limit files say."""
    found: Counter[str] = Counter()
    for file in (node.state / "node" / "sessions").glob("*/limit/limit"):
        try:
            for limit in abi.read_limits(file):
                found[limit.uuid] += limit.eighths
        except FileNotFoundError:  # it ended meanwhile
            continue
    return found


def kinds(node: Machine, session: str) -> list[str]:
    """Kinds of a session's ledger rows, oldest first."""
    rows = node.api.get("/events", params={"session": session, "limit": 1000}).json()["events"]
    return [row["kind"] for row in reversed(rows)]


HALF = b'"\\ud800"'
BODIES: dict[str, bytes] = {
    "half a character": b'{"user":"u","share":' + HALF + b"}",
    "half a character as user": b'{"user":' + HALF + b',"share":"1/8"}',
    "half a character as key": b'{"user":"u","share":"1/8",' + HALF + b":1}",
    "half a character as model": b'{"user":"u","share":"1/8","model":' + HALF + b"}",
    "nan": b'{"user":"u","share":NaN}',
    "infinite": b'{"user":"u","share":-1e999}',
    "4000 digits": b'{"user":"u","share":' + b"9" * 4000 + b"}",
    "5000 digits": b'{"user":"u","share":' + b"9" * 5000 + b"}",
    "deep": b'{"user":"u","share":' + b"[" * 900 + b"]" * 900 + b"}",
    "deeper": b'{"user":"u","share":' + b"[" * 30000 + b"]" * 30000 + b"}",
    "nul": b'{"user":"u","share":"1/8\\u0000"}',
    "not utf-8": b'{"user":"\xff","share":"1/8"}',
    "look-alike digits": '{"user":"u","share":"１/８"}'.encode(),
    "huge": b'{"user":"u","share":"' + b"x" * 10_000_000 + b'"}',
    "list": b"[]",
    "empty": b"",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_malformed_bodies_are_told_so_and_change_nothing(node: Machine, method: str, body: bytes) -> None:
    session = node.api.post("/sessions", json={"user": "victim", "share": "1/4"}).json()["session"]["id"]
    before = records(node)
    path = "/sessions" if method == "POST" else f"/sessions/{session}"
    content = body if method == "POST" else body.replace(b'"user":"u",', b"")
    answer = node.api.request(method, path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 413, 422), answer.text
    assert answer.json()["error"]["message"]
    assert len(answer.content) < 2000
    assert records(node) == before


@pytest.mark.parametrize("token", ["a\x01b", "a\x7f", "a b", "a\tb", "é", "x" * 2000])
def test_what_cannot_be_a_token_is_not_asked_about(node: Machine, token: str) -> None:
    """There is no hub here: asking it would be a 503."""
    with httpx.Client(base_url=node.api.base_url) as client:
        answer = client.get("/offers", headers={"Authorization": f"Bearer {token}".encode()})
    assert answer.status_code in (400, 401), answer.text


def test_a_storm_never_gives_out_more_than_a_card_and_the_ledger_explains_it(node: Machine) -> None:
    problems: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            on_disk: Counter[str] = Counter()
            for _, card, eighths, _ in records(node):
                on_disk[card] += eighths
            for what, sums in (("records", on_disk), ("limit files", limits(node))):
                problems.extend(f"{what}: {card} has {taken}/8" for card, taken in sums.items() if taken > 8)
            over.wait(0.005)

    def storm(seed: int) -> None:
        dice = random.Random(seed)
        with httpx.Client(base_url=node.api.base_url, headers=node.api.headers, timeout=30) as api:
            for _ in range(40):
                share, user = dice.choice(list(EIGHTHS)), f"storm{dice.randrange(3)}"
                held = [row["id"] for row in api.get("/sessions").json()["sessions"]]
                match dice.randrange(4):
                    case 0:
                        answer = api.post("/sessions", json={"user": user, "share": share})
                    case 1 if held:
                        answer = api.delete(f"/sessions/{dice.choice(held)}")
                    case _ if held:
                        answer = api.patch(f"/sessions/{dice.choice(held)}", json={"share": share})
                    case _:
                        continue
                if answer.status_code not in (200, 201, 404, 409):
                    problems.append(f"{answer.status_code} {answer.text}")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            list(pool.map(storm, range(6)))
    finally:
        over.set()
        watcher.join()
    assert problems == []

    for row in node.api.get("/sessions").json()["sessions"]:
        node.api.delete(f"/sessions/{row['id']}")
    until(lambda: records(node) == [], what="all eighths to be free")
    assert node.free_eighths() == 8
    for row in node.api.get("/sessions", params={"ended": True}).json()["sessions"]:
        # the node knows it before the ledger does
        until(lambda name=row["id"]: kinds(node, name)[-1] == "free", what="the ledger to tell it")
        found = kinds(node, row["id"])
        resizes = found[1:-2]
        assert [found[0], *found[-2:]] == ["start", "end", "free"], found
        assert set(resizes) <= {"resize"}, found


def refuse_rows(node: Machine, refuse: bool) -> None:
    """Make every ledger row fail to be written, as a full disk does, or no longer."""
    with sqlite3.connect(node.state / "service" / "service.sqlite", timeout=10) as database:
        if refuse:
            database.execute("CREATE TRIGGER full BEFORE INSERT ON ledger BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        else:
            database.execute("DROP TRIGGER full")


def test_what_cannot_be_written_down_does_not_happen_or_is_written_later(own: Machine) -> None:
    session, program = own.start("ann", "1/4")
    refuse_rows(own, True)
    answer = own.api.patch(f"/sessions/{session['id']}", json={"share": "1/2"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage")
    assert [row[2] for row in records(own)] == [2]
    assert program("info()[1]") == session["memory_bytes"], "nothing has changed"
    answer = own.api.post("/sessions", json={"user": "bob", "share": "1/2"})
    assert answer.status_code == 503
    until(lambda: [row[0] for row in records(own)] == [session["id"]], what="the other's eighths to be given back")

    program.kill()
    until(lambda: records(own) == [], what="the node to see that it ended")
    assert kinds(own, session["id"]) == ["start"]
    refuse_rows(own, False)
    until(lambda: kinds(own, session["id"]) == ["start", "end", "free"], what="the ledger to tell it")
    assert own.api.get(f"/sessions/{session['id']}").json()["state"] == "ended"


def test_the_node_refuses_what_it_cannot_write_down(own: Machine) -> None:
    session, program = own.start("ann", "1/4")
    path = f"/sessions/{session['id']}"
    with sqlite3.connect(own.state / "node" / "agent.sqlite", timeout=10) as database:
        for verb in ("INSERT", "UPDATE"):
            database.execute(
                f"CREATE TRIGGER full_{verb} BEFORE {verb} ON records BEGIN SELECT RAISE(ABORT, 'disk full'); END"
            )
    for method, where, body in (
        ("POST", "/sessions", {"user": "bob", "share": "1/4"}),
        ("PATCH", path, {"share": "1/2"}),
        ("PATCH", path, {"share": "1/8"}),
        ("DELETE", path, None),
    ):
        answer = own.api.request(method, where, json=body)
        assert answer.status_code == 503, answer.text
        assert "disk full" in answer.json()["error"]["message"]
        assert program("info()[1]") == session["memory_bytes"]
        assert own.free_eighths() == 14


@pytest.mark.parametrize("broken", ["node/agent.sqlite", "service/service.sqlite"])
def test_a_damaged_database_is_named_and_nothing_is_lost(own: Machine, broken: str) -> None:
    session, program = own.start("ann", "1/4")
    program("kept = 42")
    own.kill_service()
    file = own.state / broken
    saved = own.state / "saved"
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(file, saved)
    for name in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
        name.unlink(missing_ok=True)
    file.write_bytes(b"garbage" * 1000)
    done = subprocess.run(
        [sys.executable, "-m", "gpuspawner.service"],
        env=own.env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert str(file) in done.stderr
    file.write_bytes(saved.read_bytes())
    own.start_service()
    assert own.api.get(f"/sessions/{session['id']}").json()["state"] == "running"
    assert own.free_eighths() == 14
    assert program("kept") == 42


def test_lost_records_of_the_node_are_found_again_by_what_runs(own: Machine) -> None:
    one, program = own.start("ann", "1/4")
    two, _ = own.start("bob", "1")
    own.kill_service()
    for file in (own.state / "node").glob("agent.sqlite*"):
        file.unlink()
    own.start_service()
    held = {(session, eighths, state) for session, _, eighths, state in records(own)}
    assert held == {(one["id"], 2, "live"), (two["id"], 8, "live")}
    assert own.free_eighths() == 6
    assert own.api.patch(f"/sessions/{one['id']}", json={"share": "1/2"}).json()["session"]["share"] == "1/2"
    assert program("info()[1]") == 2 * one["memory_bytes"]
    for session in (one, two):
        own.api.delete(f"/sessions/{session['id']}")
        # free when the driver shows nothing of it, which is when its program has ended
        until(lambda name=session["id"]: kinds(own, name)[-2:] == ["end", "free"], what="its eighths to be free")
    assert own.free_eighths() == 16


def test_an_end_that_was_killed_half_way_is_brought_to_its_end(own: Machine) -> None:
    session, program = own.start("ann", "1/2")
    program("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")

    def ask() -> None:
        url = f"{own.api.base_url}sessions/{session['id']}"
        with pytest.raises(httpx.TransportError):
            httpx.delete(url, headers={"Authorization": f"Bearer {SERVICE_TOKEN}"}, timeout=30)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: [row[3] for row in records(own)] == ["held"], what="the end to begin")
    own.kill_service()
    asking.join()
    folder = own.state / "node" / "sessions" / session["id"]
    assert session_alive(folder)
    own.start_service()
    until(lambda: records(own) == [], what="the session to be gone")
    assert not session_alive(folder)
    until(lambda: kinds(own, session["id"]) == ["start", "end", "free"], what="the ledger to tell it")


def test_a_session_that_comes_and_goes_between_two_looks_gives_its_share_back(own: Machine) -> None:
    """The node looks twice a second; what it never saw alive must not hold its eighths until the start is given up."""
    for _ in range(5):
        launch = own.api.post("/sessions", json={"user": "ann", "share": "1"}).json()["launch"]
        subprocess.run([*launch["argv_prefix"], "true"], env={**launch["env"]}, cwd=launch["home"], check=True)
        until(lambda: own.free_eighths() == 16, what="the eighths")


def test_sessions_on_a_card_that_is_gone_can_be_seen_and_ended(own: Machine) -> None:
    session: dict[str, Any] = own.api.post("/sessions", json={"user": "ann", "share": "1/4"}).json()["session"]
    own.kill_service()
    lost = session["cards"][0]["uuid"]
    with sqlite3.connect(own.state / "node" / "agent.sqlite") as database:
        database.execute("UPDATE records SET cards = replace(cards, ?, ?)", (lost, lost[:-4] + "dead"))
    with sqlite3.connect(own.state / "service" / "service.sqlite") as database:
        database.execute("UPDATE sessions SET cards = replace(cards, ?, ?)", (lost, lost[:-4] + "dead"))
    own.start_service()
    shown = own.api.get("/sessions")
    assert shown.status_code == 200
    assert [(row["id"], row["cards"], row["resizable"]) for row in shown.json()["sessions"]] == [
        (session["id"], [], False)
    ]
    assert own.api.delete(f"/sessions/{session['id']}").status_code == 200
