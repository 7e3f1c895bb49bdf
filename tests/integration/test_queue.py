"""The queue with real sessions on simulated cards: the service is killed, and memory is in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.common import until
from support.machine import Machine, machine

GIB = 1 << 30
CARD = 85_520_809_984
POLICY = """
version: 1
queue:
- {users: [ursa], default: inference-urgent}
- {users: [tom, tia], default: training}
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Machine]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    with machine(tmp_path / "state", "1*h100-80gb", env={"GPUSPAWNER_POLICY": str(policy)}) as made:
        yield made


def ask(node: Machine, user: str, share: str) -> Any:
    return node.api.post("/sessions", json={"user": user, "share": share, "wait": True})


def state(node: Machine, session: str) -> str:
    return str(node.api.get(f"/queue/{session}").json()["state"])


def kinds(node: Machine, session: str) -> list[tuple[str, int]]:
    rows = node.api.get(f"/events?session={session}").json()["events"]
    return [(row["kind"], row["eighths"]) for row in rows]


def test_a_place_survives_the_service_and_running_work_gives_way_and_grows_back(node: Machine) -> None:
    tom, program = node.start("tom", "1/2")
    tia, other = node.start("tia", "1/2")
    assert other(f"allocate({30 * GIB})") == "CUDA_SUCCESS"
    waits = [ask(node, user, "1/2").json()["waiting"]["id"] for user in ("ann", "bob")]

    urgent = ask(node, "ursa", "1/4")
    assert urgent.status_code == 201, urgent.text
    assert program("info()[1]") == CARD // 4, "it runs on, smaller"
    assert other("info()[1]") == CARD // 2, "what is in use is not taken"
    assert program(f"allocate({30 * GIB})") == "CUDA_ERROR_OUT_OF_MEMORY"

    node.kill_service()
    node.start_service()
    assert [each["id"] for each in node.api.get("/queue").json()["queue"]] == waits
    assert [state(node, session) for session in waits] == ["waiting", "waiting"]

    node.api.delete(f"/sessions/{urgent.json()['session']['id']}")
    until(lambda: program("info()[1]") == CARD // 2, 30, "what was taken to be given back")
    assert program(f"allocate({30 * GIB})") == "CUDA_SUCCESS"
    wanted = [("resize", 4), ("resize", 2), ("start", 4)]
    until(lambda: kinds(node, tom["id"]) == wanted, 30, "the ledger's rows, each once")

    node.api.delete(f"/sessions/{tia['id']}")
    until(lambda: state(node, waits[0]) == "placed", 30, "the first who waits to be placed")
    assert state(node, waits[1]) == "waiting"
    session, mine = node.start("ann", "1/2", wait=True)
    assert session["id"] == waits[0]
    assert mine("info()[1]") == CARD // 2
    assert node.api.delete(f"/sessions/{waits[1]}").json()["state"] == "waiting"
    assert node.api.get("/queue").json() == {"queue": [], "length": 0}
