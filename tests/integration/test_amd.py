"""Whole AMD cards through the real service and launcher, beside simulated NVIDIA cards.

The library `amdsmi` is the stand-in of `tests/support/amd.py`, and nothing computes on such a card: no AMD card was at
hand. What is real is who gets which card, what programs are told of it, and when it is free again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.amd import UUIDS
from support.common import until
from support.limits import ROOT
from support.machine import Machine, SessionProgram, machine

from gpuspawner.node.limits import launch

AMD = [f"GPU-{uuid}" for uuid in UUIDS]
VISIBLE = "[os.environ.get(name) for name in ('CUDA_VISIBLE_DEVICES', 'ROCR_VISIBLE_DEVICES', 'HIP_VISIBLE_DEVICES')]"


class Mixed:
    """A machine with simulated NVIDIA cards and two AMD cards."""

    def __init__(self, node: Machine, said: Path) -> None:
        self.node = node
        self._said = said

    def show(self, *processes: dict[int, int]) -> None:
        """What the AMD cards' library shows from now on: bytes by process, of each card."""
        new = self._said.with_suffix(".new")
        new.write_text(json.dumps(processes))
        new.replace(self._said)

    def start(self, user: str, share: str, model: str | None = None) -> tuple[dict[str, object], SessionProgram]:
        answer = self.node.api.post("/sessions", json={"user": user, "share": share, "model": model})
        assert answer.status_code == 201, answer.text
        program = SessionProgram(answer.json()["launch"])
        self.node.programs.append(program)
        program("import os")
        return answer.json()["session"], program

    def free(self) -> int:
        """How many AMD cards could be had."""
        offers = self.node.api.get("/offers").json()["offers"]
        return next(each["free_places"] for each in offers if (each["model"], each["share"]) == ("mi300x-192gb", "1"))

    def cards(self, session: dict[str, object]) -> list[str]:
        return [card["uuid"] for card in session["cards"]]  # type: ignore[attr-defined]


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Mixed]:
    library, said = tmp_path / "library", tmp_path / "processes.json"
    library.mkdir()
    (library / "amdsmi.py").write_text(
        "import sys\nfrom support.amd import StandIn\nsys.modules[__name__] = StandIn(2)\n"
    )
    said.write_text("[]")
    env = {
        "GPUSPAWNER_CARDS": "auto",
        "GPUSPAWNER_TEST_AMD": str(said),
        "PYTHONPATH": os.pathsep.join([str(library), str(ROOT / "tests")]),
    }
    with machine(tmp_path / "state", "1*h100-80gb", env=env) as node:
        yield Mixed(node, said)


def test_whole_amd_cards_are_offered_and_given_out(mixed: Mixed) -> None:
    offers = mixed.node.api.get("/offers").json()["offers"]
    of_amd = {offer["share"]: offer for offer in offers if offer["model"] == "mi300x-192gb"}
    assert list(of_amd) == ["1", "2"]
    assert [(each["free_places"], each["resize"]) for each in of_amd.values()] == [(2, "none"), (1, "none")]
    assert [offer["share"] for offer in offers if offer["model"] == "h100-80gb"] == ["1/8", "1/4", "1/2", "1"]

    first, program = mixed.start("ann", "1", "mi300x-192gb")
    assert mixed.cards(first) == [AMD[0]]
    assert program(VISIBLE) == ["", "GPU-80f50d4f5e1a2b3c", "0"]
    assert first["memory_bytes"] == 196592 << 20
    assert (first["resizable"], first["resize"]) == (False, "none")
    second, program = mixed.start("bob", "1", "mi300x-192gb")
    assert mixed.cards(second) == [AMD[1]]
    assert program(VISIBLE) == ["", "GPU-80f50d4f5e1a2b3d", "0"]
    third = mixed.node.api.post("/sessions", json={"user": "cy", "share": "1", "model": "mi300x-192gb"})
    assert third.status_code == 409, third.text

    other, program = mixed.start("dan", "1/8")
    assert mixed.cards(other)[0] not in AMD
    assert program(VISIBLE) == [mixed.cards(other)[0], "-1", "-1"]


def test_fractions_are_refused_with_the_reason(mixed: Mixed) -> None:
    for share in ("1/8", "1/2"):
        refused = mixed.node.api.post("/sessions", json={"user": "ann", "share": share, "model": "mi300x-192gb"})
        assert refused.status_code == 409, refused.text
        assert "Fractions of AMD cards do not exist here yet" in refused.json()["error"]["message"]
    session, _ = mixed.start("ann", "1", "mi300x-192gb")
    refused = mixed.node.api.patch(f"/sessions/{session['id']}", json={"share": "1/2"})
    assert refused.status_code == 409, refused.text
    assert refused.json()["error"]["code"] == "not_resizable"


def test_the_card_is_free_when_the_driver_shows_nothing_left(mixed: Mixed) -> None:
    session, program = mixed.start("ann", "2", "mi300x-192gb")
    assert mixed.cards(session) == AMD
    assert program(VISIBLE) == ["", "GPU-80f50d4f5e1a2b3c,GPU-80f50d4f5e1a2b3d", "0,1"]
    path = f"/sessions/{session['id']}"
    folder = mixed.node.state / "node" / "sessions" / str(session["id"])
    inside = min(launch.session_pids(folder))
    mixed.show({inside: 3 << 30}, {inside: 5 << 30})
    until(lambda: mixed.node.api.get(path).json()["memory_used_bytes"] == 8 << 30, 20, "what the driver shows")
    assert mixed.node.api.delete(path).status_code == 200
    assert mixed.free() == 0
    mixed.show({}, {})
    until(lambda: mixed.free() == 2, 20, "both to be free")
