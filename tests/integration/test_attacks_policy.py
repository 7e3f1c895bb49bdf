"""Attacks on policy, ledger, audit and their API: who may ask what, forged headers, floods, a database that goes."""

from __future__ import annotations

import csv
import io
import json
import re
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.common import until
from support.machine import Machine, machine
from support.memory_fleet import House, Tokens
from support.postgres import postgres

from gpuspawner.service.auth import NotSignedIn, Principal
from gpuspawner.service.requests.rate import RateLimit

LAB = """
version: 1
costs: [{per_hour: "10.00"}]
rules:
  - {name: all, allow: {}}
  - {name: leads, groups: [leads], rights: [telemetry], over: {groups: [lab]}}
"""
#: What anybody may ask.
_OPEN = {("GET", "/health")}
_STREAM = "/panel/events"
#: What everybody who is signed in may ask about themselves; answers hold nothing of others.
_OWN = {"/offers", "/sessions", "/cost", "/cost/page", "/queue", "/policy/users/{user}"}


class Callers(Tokens):
    """And a token that has expired, one without scopes, one whose scopes are a group's, one of another hub."""

    async def principal(self, authorization: str | None) -> Principal:
        token = (authorization or "").partition(" ")[2]
        if token in ("stale", "of-another-hub"):
            raise NotSignedIn("JupyterHub does not know this token, or it has expired.")
        if token == "bare":
            return Principal("ann", frozenset(), user="ann")
        if token == "groupadmin":
            scopes = {f"custom:gpuspawner:{action}!group=lab" for action in ("admin", "read", "resize")}
            return Principal("gil", frozenset({*scopes, "admin:groups!group=lab"}), user="gil")
        return await super().principal(authorization)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr("support.memory_fleet.Tokens", Callers)
    made = House(tmp_path, LAB, ann=["lab"], leo=["leads"], gil=["leads"])
    yield made
    made.engine.dispose()


def routes(house: House, session: str) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Method, path as it is documented, path to ask, and what is sent, of every route."""
    found = []
    documented = house.ask("admin", "GET", "/openapi.json").json()["paths"]
    for path, methods in documented.items():
        plain = path.removeprefix("/api/v1")
        asked = re.sub(r"\{session\}", session, plain)
        asked = re.sub(r"\{user\}", "ann", asked)
        asked = re.sub(r"\{[a-z]+\}", "x", asked)
        for method in methods:
            body: dict[str, Any] = {}
            if plain == "/sessions/{session}":
                body = {"json": {"share": "1/2"}}
            elif plain == "/ledger/corrections":
                body = {"json": {"row": 3, "amount": "-9.99", "reason": "mine"}}
            elif plain == "/sessions":
                body = {"json": {"user": "ann", "share": "1/8", "server": "more"}}
            elif plain.endswith("/parking"):
                body = {"json": {"notice": "p-1", "outcome": "saved", "said": "all of it"}}
            elif plain.endswith("/activity"):
                body = {"json": {"idle_seconds": 1e6}}
            found.append((method.upper(), plain, asked, body if method not in ("get", "delete") else {}))
    return found


def test_every_route_by_everybody_who_may_not(house: House) -> None:
    secret = "w-secret-of-ann"
    session = house.start("ann", "1/4", server=secret).json()["session"]["id"]
    house.ask("admin", "GET", "/sessions")
    asked = routes(house, session)
    assert len(asked) >= 18
    before = house.store.ledger(limit=1)[0].id
    for method, plain, path, body in asked:
        if (method, plain) in _OPEN or plain.startswith("/openapi"):
            continue
        for nobody in (
            {},
            {"Cookie": "jupyterhub-hub-login=x; jupyterhub-session-id=x; _xsrf=x"},
            {"Authorization": "Bearer"},
        ):
            answer = house.client.request(method, path, headers=nobody, **body)
            assert answer.status_code in (401, 302, 303), (method, plain, nobody, answer.status_code)
        for stale in ("stale", "of-another-hub"):
            assert house.ask(stale, method, path, **body).status_code in (401, 302, 303), (method, plain, stale)
        if plain == _STREAM:
            continue  # it never ends, and has tests of its own
        for other in ("eve", "server:eve/", "bare", "groupadmin", "leo"):
            answer = house.ask(other, method, path, **body)
            assert answer.status_code < 500, (method, plain, other, answer.text)
            if other == "leo" and method == "GET":
                continue  # a lead may watch the lab; see below
            if answer.status_code < 300:
                assert method == "GET", (method, plain, other)
                assert plain in _OWN or plain.startswith("/panel"), (method, plain, other)
            assert secret not in answer.text, (method, plain, other)
    new = [row.kind for row in house.store.ledger(limit=10) if row.id > before]
    assert new == [], "nothing was changed"
    assert house.fleet.held[session].eighths_per_card == 2
    leads = house.ask("leo", "GET", f"/sessions/{session}")
    assert leads.status_code == 200
    tried = house.ask("admin", "GET", "/audit?limit=1000").json()
    assert {entry["actor"] for entry in tried["entries"]} >= {"eve", "ann", "gil", "leo"}, "who tried is in the audit"
    assert tried["problem"] is None


def test_the_administrator_may_ask_every_route(house: House) -> None:
    session = house.start("ann", "1/4").json()["session"]["id"]
    for method, plain, path, body in routes(house, session):
        if method == "GET" and plain != _STREAM:
            status = house.ask("admin", method, path, **body).status_code
            assert status not in (401, 403), plain
            assert status < 500, plain


def test_forwarded_headers_and_prefixes_change_nobody_and_nothing(house: House) -> None:
    session = house.start("ann", "1/4").json()["session"]["id"]
    forged = {
        "X-Forwarded-For": "10.9.9.9, 198.51.100.7",
        "X-Forwarded-Prefix": "/services/other",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-User": "admin",
        "X-Real-IP": "10.9.9.9",
        "X-Original-URL": "/audit",
        "Host": "evil.example",
    }
    assert house.ask("eve", "GET", "/audit", headers=forged).status_code == 403
    assert house.ask("eve", "PATCH", f"/sessions/{session}", json={"share": "1"}, headers=forged).status_code == 404
    entry = house.ask("admin", "GET", "/audit?limit=1").json()["entries"][0]
    assert (entry["actor"], entry["source"]) == ("eve", "198.51.100.7 by proxy"), "not what the client wrote before it"
    for path in ("//audit", "/../audit", "/%2e%2e/api/v1/audit", "/audit/", "/audit;x", "/audit%00"):
        assert house.ask("eve", "GET", path).status_code in (400, 401, 403, 404, 307), path


def test_what_stands_in_the_audit_is_data(house: House) -> None:
    """Names and reasons that would be lines, markup or formulas elsewhere."""
    session = house.start("ann", "1/4").json()["session"]["id"]
    evil = "=1+1\r\nSet-Cookie: a=b <script>"
    headers = {"X-Gpuspawner-Reason": evil.replace("\r\n", " ")}
    body = {"share": "1/8", evil: evil * 1000}
    assert house.ask("ann", "PATCH", f"/sessions/{session}", json=body, headers=headers).status_code == 422
    answer = house.ask("admin", "GET", "/audit?limit=1")
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.content) < 4000, "what was asked is cut"
    assert answer.json()["problem"] is None


def test_a_token_that_floods_is_held_back_and_others_are_not(tmp_path: Path) -> None:
    house = House(tmp_path, LAB, rate=RateLimit(rate=0.1, burst=20))
    session = house.start("ann", "1/4").json()["session"]["id"]
    statuses = [house.ask("eve", "GET", f"/sessions/{session}").status_code for _ in range(30)]
    assert statuses[:20] == [404] * 20
    assert statuses[-1] == 429
    assert house.ask("ann", "GET", f"/sessions/{session}").status_code == 200
    house.engine.dispose()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, "1*h100-80gb") as made:
        yield made


def test_bodies_that_never_end_and_open_connections_keep_nobody_waiting(node: Machine) -> None:
    session = node.api.post("/sessions", json={"user": "ann", "share": "1/8"}).json()["session"]["id"]
    base = node.api.base_url
    head = f"PATCH {base.path}/sessions/{session} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer nobody\r\n"
    half = (head + "Content-Type: application/json\r\nContent-Length: 60000\r\n\r\n{").encode()
    held = [socket.create_connection((str(base.host), base.port), timeout=20) for _ in range(300)]
    try:
        for number, connection in enumerate(held):
            connection.sendall(half if number % 2 else half[:40])
        for share in ("1/2", "1/8", "1"):
            answer = node.api.patch(f"/sessions/{session}", json={"share": share})
            assert answer.json()["session"]["share"] == share
    finally:
        for connection in held:
            connection.close()
    assert node.api.get("/health").status_code == 200


def test_a_locked_database_is_said_so_and_nothing_is_lost(node: Machine) -> None:
    session, program = node.start("ann", "1/8")
    program("kept = 42")
    with sqlite3.connect(node.state / "service" / "service.sqlite", isolation_level=None) as database:
        database.execute("BEGIN EXCLUSIVE")
        answer = node.api.patch(f"/sessions/{session['id']}", json={"share": "1/2"}, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage")
        assert program("kept") == 42
        database.execute("ROLLBACK")
    answer = until(lambda: _good(node, session["id"]), 60, "the service to write again")
    assert answer["session"]["share"] == "1/2"
    kinds = [row["kind"] for row in node.api.get("/events", params={"session": session["id"]}).json()["events"]]
    assert kinds == ["resize", "start"]


def _good(node: Machine, session: str) -> Any:
    answer = node.api.patch(f"/sessions/{session}", json={"share": "1/2"}, timeout=60)
    return answer.json() if answer.status_code == 200 else None


def test_postgresql_gone_and_back(tmp_path: Path) -> None:
    with postgres() as cluster:
        house = House(tmp_path, LAB, url=cluster.database())
        session = house.start("ann", "1/4").json()["session"]["id"]
        cluster.stop()
        for refused in (
            house.ask("ann", "PATCH", f"/sessions/{session}", json={"share": "1/2"}),
            house.start("bob", "1/8"),
            house.ask("ann", "GET", f"/sessions/{session}"),
        ):
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage")
        assert house.fleet.held[session].eighths_per_card == 2, "the session has what it had"
        assert list(house.fleet.held) == [session], "what could not be written down did not happen"
        cluster.start()
        assert house.ask("ann", "PATCH", f"/sessions/{session}", json={"share": "1/2"}).status_code == 200
        assert house.ask("admin", "GET", "/ledger/verify").json()["ok"]
        house.engine.dispose()


def test_exports_with_hostile_names_are_read_back_as_they_were(house: House) -> None:
    """CSV is for spreadsheets and marks what they would run; JSON lines and Parquet are for programs, and true."""
    names = ["=1+1", "\t=1+1", "@SUM(A1)", "-1", "ann\r\n=cmd", '"quoted",x', "\N{FULLWIDTH EQUALS SIGN}1"]
    for name in names:
        assert house.start(name, "none").status_code == 201
    lines = house.ask("admin", "GET", "/ledger/export?format=json").text.splitlines()
    assert [json.loads(line)["user"] for line in lines if json.loads(line)["kind"] == "start"] == names
    table = house.ask("admin", "GET", "/ledger/export?format=csv").text
    cells = [cell for row in csv.reader(io.StringIO(table, newline="")) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "-", "\t", "\r"))]
