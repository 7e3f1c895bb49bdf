"""Cards that fall ill while sessions run on them: faults scripted at the device, seen through the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.common import until
from tests.support.machine import Machine, machine


@pytest.fixture(scope="module")
def one_card_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("one") / "state", "1*h100-80gb") as running:
        yield running


@pytest.fixture
def one_card(one_card_machine: Machine) -> Iterator[Machine]:
    """A machine with one card, without sessions and well again after each test."""
    yield one_card_machine
    for session in one_card_machine.api.get("/sessions").json()["sessions"]:
        one_card_machine.api.delete(f"/sessions/{session['id']}")
    one_card_machine.cards.control("lose 0")
    until(lambda: not offered(one_card_machine, "1/8")["available"], what="the card to be seen as lost")
    one_card_machine.cards.control("restore 0")
    until(lambda: one_card_machine.free_eighths() == 8, what="the card to be free and well")


def health(on: Machine, session: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = on.api.get(f"/sessions/{session['id']}").json()["cards"][0]["health"]
    return answer


def offered(on: Machine, share: str) -> dict[str, Any]:
    return next(offer for offer in on.api.get("/offers").json()["offers"] if offer["share"] == share)


def test_a_lost_card_takes_no_new_sessions_and_its_own_run_on_until_it_is_back(one_card: Machine) -> None:
    session, program = one_card.start("ann", "1/4")
    assert session["cards"][0]["health"] == {"state": "ok", "reason": None}
    assert program("allocate(1 << 30)") == "CUDA_SUCCESS"
    one_card.cards.control("lose 0")
    until(lambda: health(one_card, session)["state"] == "failed", what="the card to be seen as lost")
    assert "lost" in health(one_card, session)["reason"]
    offer = offered(one_card, "1/8")
    assert not offer["available"]
    assert offer["free_places"] == 0
    assert "out of service" in offer["reason"]
    refused = one_card.api.post("/sessions", json={"user": "bob", "share": "1/8"})
    assert refused.status_code == 409
    assert "out of service" in refused.json()["error"]["message"]
    grow = one_card.api.patch(f"/sessions/{session['id']}", json={"share": "1/2"})
    assert grow.status_code == 409, grow.text
    assert grow.json()["error"]["code"] == "card_failed"
    shown = one_card.api.get(f"/sessions/{session['id']}").json()
    assert shown["state"] == "running"
    assert shown["share"] == "1/4"
    assert shown["memory_used_bytes"] is None
    (notice,) = [each for each in shown["notices"] if each["code"] == "card_failed"]
    assert "lost" in notice["message"]
    assert notice["deadline"] is None
    assert {option["share"] for option in shown["options"] if option["available"]} == {"1/8", "1/4"}
    one_card.cards.control("restore 0")
    until(lambda: health(one_card, session)["state"] == "ok", what="the card to be seen as back")
    assert one_card.api.get(f"/sessions/{session['id']}").json()["notices"] == []
    assert offered(one_card, "1/8")["free_places"] == 6
    one_card.start("bob", "1/8")


def test_a_code_that_asks_for_a_reset_takes_the_card_out_and_a_hot_one_is_only_marked(one_card: Machine) -> None:
    session, _ = one_card.start("ann", "1/4")
    one_card.cards.control("set 0 temperature 90")
    until(lambda: health(one_card, session)["state"] == "warning", what="the heat to be seen")
    assert "90 °C" in health(one_card, session)["reason"]
    assert offered(one_card, "1/2")["available"]
    one_card.cards.control("set 0 temperature auto")
    until(lambda: health(one_card, session)["state"] == "ok", what="the card to be cool again")
    one_card.cards.control("xid 0 31")  # a program's own fault
    one_card.cards.control("xid 0 48")
    until(lambda: health(one_card, session)["state"] == "failed", what="the code to be seen")
    assert health(one_card, session)["reason"] == "XID 48: uncorrectable memory error."
    assert not offered(one_card, "1/8")["available"]


def test_a_card_that_tells_nothing_is_not_called_ill(one_card: Machine) -> None:
    for metric in ("temperature", "power", "ecc", "utilization", "clocks", "xid", "memory"):
        one_card.cards.control(f"unsupported 0 {metric}")
    session, _ = one_card.start("ann", "1/4")
    assert health(one_card, session) == {"state": "ok", "reason": None}


def test_other_cards_go_on_while_one_is_lost(tmp_path: Path) -> None:
    with machine(tmp_path / "state", "2*h100-80gb") as two:
        on_first, _ = two.start("ann", "1/2")
        lost = on_first["cards"][0]["index"]
        two.cards.control(f"lose {lost}")
        until(lambda: health(two, on_first)["state"] == "failed", what="the card to be seen as lost")
        on_second, program = two.start("bob", "1/2")
        assert on_second["cards"][0]["index"] != lost
        assert on_second["cards"][0]["health"]["state"] == "ok"
        assert program("allocate(1 << 30)") == "CUDA_SUCCESS"
        assert two.api.get(f"/sessions/{on_second['id']}").json()["memory_used_bytes"] > 1 << 30
        whole = offered(two, "2")
        assert not whole["available"]
        assert "only 1 such card" in whole["reason"]
