"""The page's board and its streams: what changes, who sees what, who is slow."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.memory_fleet import House, MemoryFleet

from gpuspawner.fleet.base import CardReadings
from gpuspawner.service.auth import Principal
from gpuspawner.service.panel import board as boards
from gpuspawner.service.panel.board import Board, Viewer
from gpuspawner.service.panel.feed import MOST_OF_ONE, Feed, TooManyStreams

ADMIN = Viewer(Principal("admin", frozenset({"custom:gpuspawner:admin"}), user="admin"))
ANN = Viewer(Principal("ann", frozenset({"custom:gpuspawner:read!user=ann"}), user="ann"))


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path, fleet=MemoryFleet(nodes=2, cards=1))


@pytest.fixture
def board(house: House) -> Board:
    return Board(house.service, house.tariff)


def read(raw: bytes) -> list[tuple[str, Any, str | None]]:
    """Kind, body and id of each event."""
    found = []
    for block in raw.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields["event"], json.loads(fields["data"]), fields.get("id")))
    return found


def whole(board: Board, viewer: Viewer) -> tuple[list[Any], list[Any]]:
    """The cards and the sessions of a snapshot."""
    events = read(b"".join(board.snapshot(viewer)[1]))
    parts = [body for kind, body, _ in events if kind == "part"]
    assert [events[0][0], events[-1][0]] == ["begin", "ready"]
    return [c for p in parts for c in p.get("cards", ())], [s for p in parts for s in p.get("sessions", ())]


async def always() -> Viewer | None:
    return ADMIN


def test_what_is_unknown_is_null_and_who_holds_what_is_told(house: House, board: Board) -> None:
    session = house.start("ann", "1/4").json()["session"]
    house.fleet.now = {"GPU-0000-00": CardReadings(5 << 30, 0, 41, 71.5)}
    board.look()
    cards, sessions = whole(board, ADMIN)
    first, second = cards
    assert (first["memory_used"], first["utilization"], first["temperature"], first["power"]) == (5 << 30, 0, 41, 71.5)
    assert [second[key] for key in ("memory_used", "utilization", "temperature", "power")] == [None] * 4
    assert (first["held"], first["free"], second["held"], second["free"]) == (2, 6, 0, 8)
    assert [(each["id"], each["cards"], each["eighths"]) for each in sessions] == [(session["id"], ["GPU-0000-00"], 2)]


def test_a_change_names_only_what_changed(house: House, board: Board) -> None:
    ann = house.start("ann", "1/8").json()["session"]["id"]
    house.start("bob", "1/8", card="GPU-0001-00")
    board.look()
    number = board.number
    board.look()
    assert board.number == number, "nothing has changed"
    house.ask("ann", "PATCH", f"/sessions/{ann}", json={"share": "1/2"})
    board.look()
    (delta,) = board.since(number) or []
    assert (list(delta.cards), list(delta.sessions)) == (["GPU-0000-00"], [ann])
    house.service.end(ann, "admin", "test")
    board.look()
    delta = (board.since(number) or [])[-1]
    assert delta.sessions == {ann: None}


def test_others_see_their_own_and_no_names_of_others(house: House, board: Board) -> None:
    ann = house.start("ann", "1/8").json()["session"]["id"]
    bob = house.start("bob", "1/8").json()["session"]["id"]
    board.look()
    cards, sessions = whole(board, ANN)
    assert [each["id"] for each in sessions] == [ann]
    assert [(each["uuid"], each["held"]) for each in cards] == [("GPU-0000-00", 2)]
    number = board.number
    house.service.end(bob, "admin", "test")
    board.look()
    (delta,) = board.since(number) or []
    ((_, body, _),) = read(board.change(delta, ANN))
    assert body["sessions"] == {}
    assert body["cards"]["GPU-0000-00"]["held"] == 1
    assert bob not in json.dumps(body)
    house.service.end(ann, "admin", "test")
    board.look()
    ((_, body, _),) = read(board.change((board.since(number) or [])[-1], ANN))
    assert body["sessions"] == {ann: None}


def test_what_is_forgotten_is_not_guessed(house: House, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = house.start("ann", "1/8").json()["session"]["id"]
    board.look()
    first = board.number
    for round_ in range(boards.KEPT + 1):
        house.fleet.resize(ann, 1 + round_ % 2 * 3)
        house.fleet.now = {"GPU-0000-00": CardReadings(round_)}
        board.look()
    assert board.since(first) is None
    assert len(board.since(board.number - 1) or []) == 1
    assert board.position(f"{board.life}-{first}") == first
    for strange in (None, "", "x", "ffffffff-1", f"{board.life}-", f"{board.life}--1", f"{board.life}-1e3"):
        assert board.position(strange) is None
    assert board.since(board.number + 5) is None, "of a life that never was"


async def take(stream: AsyncIterator[bytes], until: str) -> list[tuple[str, Any, str | None]]:
    """The events up to one of a kind."""
    raw = b""
    async with asyncio.timeout(30):
        async for piece in stream:
            raw += piece
            if raw.endswith(b"\n\n") and (events := read(raw)) and events[-1][0] == until:
                return events
    raise AssertionError(raw[-500:])


async def test_a_stream_goes_on_where_the_last_one_stood(house: House, board: Board) -> None:
    ann = house.start("ann", "1/8").json()["session"]["id"]
    feed = Feed(board, interval=0.01)
    stream = feed.follow(ADMIN, None, always)
    events = await take(stream, "ready")
    assert events[0] == ("hello", {"user": "admin", "admin": True, "all": True}, None)
    await stream.aclose()  # type: ignore[attr-defined]
    assert feed.streams == 0
    house.fleet.resize(ann, 4)
    again = feed.follow(ADMIN, events[-1][2], always)
    seen = await take(again, "change")
    assert "part" not in [kind for kind, _, _ in seen]
    assert seen[-1][1]["sessions"][ann]["eighths"] == 4
    await again.aclose()  # type: ignore[attr-defined]


async def test_a_slow_browser_slows_nobody_and_gets_everything_anew(house: House, board: Board) -> None:
    house.start("ann", "1/8")
    feed = Feed(board, interval=0.001)
    slow, quick = feed.follow(ADMIN, None, always), feed.follow(ADMIN, None, always)
    await take(slow, "ready")
    await take(quick, "ready")
    for round_ in range(boards.KEPT + 10):  # the slow one reads nothing of these
        house.fleet.now = {"GPU-0000-00": CardReadings(round_)}
        while (await take(quick, "change"))[-1][1]["cards"]["GPU-0000-00"]["memory_used"] != round_:
            pass
    missed = await take(slow, "ready")
    cards = [card for kind, body, _ in missed if kind == "part" for card in body.get("cards", ())]
    assert cards[0]["memory_used"] == boards.KEPT + 9
    for stream in (slow, quick):
        await stream.aclose()  # type: ignore[attr-defined]


async def test_a_stream_ends_when_its_sign_in_does(house: House, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuspawner.service.panel.feed.BELIEVED", 0.0)

    async def gone() -> Viewer | None:
        return None

    stream = Feed(board, interval=0.01).follow(ADMIN, None, gone)
    assert (await take(stream, "bye"))[-1][1] == {"reason": "signed_out"}
    assert [piece async for piece in stream] == []


async def test_the_number_of_streams_of_one_is_bounded(house: House, board: Board) -> None:
    feed = Feed(board, interval=0.01)
    streams = [feed.follow(ADMIN, None, always) for _ in range(MOST_OF_ONE)]
    for stream in streams:
        await anext(stream)
    with pytest.raises(TooManyStreams):
        feed.follow(ADMIN, None, always)
    other = feed.follow(ANN, None, always)
    assert read(await anext(other))[0][1]["user"] == "ann"
    for stream in (*streams, other):
        await stream.aclose()  # type: ignore[attr-defined]
    assert feed.streams == 0


async def test_a_fleet_that_does_not_answer_is_said(house: House, board: Board) -> None:
    board.look()

    def fails() -> None:
        raise TooManyStreams("The driver does not answer.")

    house.fleet.grants = fails  # type: ignore[method-assign,assignment]
    stream = Feed(board, interval=0.01).follow(ADMIN, None, always)
    beats = await take(stream, "ready")
    while beats[-1][1].get("problem") is None:
        beats = await take(stream, "beat")
    assert beats[-1][1]["problem"] == "The driver does not answer."
    await stream.aclose()  # type: ignore[attr-defined]


def test_a_stream_needs_a_sign_in(house: House) -> None:
    assert house.client.get("/panel/events").status_code == 401
