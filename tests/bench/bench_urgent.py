"""From an urgent request at the service to its share in force, made by making a running training smaller, on simulated
cards; beside it, in the same run, what stopping the training and starting in its place takes.

The training's own process sees its smaller limit before a round counts as done.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.common import until
from tests.support.machine import Machine, machine

ROUNDS, STOPS = 200, 10
#: What the driver of an 80 GB H100 reports, simulated or not.
CARD = 85_520_809_984
_POLICY = """
version: 1
queue:
- {users: [ursa], default: inference-urgent}
- {users: [tom], default: training}
"""


def _urgent(node: Machine) -> tuple[float, str]:
    """Milliseconds until the share is in force, and the session."""
    asked = time.monotonic_ns()
    answer = node.api.post("/sessions", json={"user": "ursa", "share": "1/2", "wait": True})
    taken = (time.monotonic_ns() - asked) / 1e6
    assert answer.status_code == 201, answer.text
    return taken, str(answer.json()["session"]["id"])


def _whole(node: Machine) -> Any:
    return node.start("tom", "1")[1]


def run() -> tuple[float, str]:
    """The 99th percentile over ROUNDS urgent requests, in milliseconds."""
    taken: list[float] = []
    stopped: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.yaml"
        policy.write_text(_POLICY)
        with machine(Path(folder) / "state", "1*h100-80gb", env={"GPUSPAWNER_POLICY": str(policy)}) as node:
            program = _whole(node)
            for _ in range(ROUNDS):
                milliseconds, session = _urgent(node)
                assert program("info()[1]") == CARD // 2, "the training is smaller when the answer comes"
                taken.append(milliseconds)
                node.api.delete(f"/sessions/{session}")
                until(lambda seen=program: seen("info()[1]") == CARD, 30, "what was taken to be given back")
            for _ in range(STOPS):
                (held,) = node.api.get("/sessions").json()["sessions"]
                asked = time.monotonic_ns()
                node.api.delete(f"/sessions/{held['id']}")
                until(lambda: _starts(node), 30, "the card to be free")
                stopped.append((time.monotonic_ns() - asked) / 1e6)
                for session in node.api.get("/sessions").json()["sessions"]:
                    node.api.delete(f"/sessions/{session['id']}")
                until(lambda: not node.api.get("/sessions").json()["sessions"], 30, "an empty card")
                _whole(node)
    p99 = sorted(taken)[len(taken) * 99 // 100 - 1]
    print(f"urgent, simulated cards, {ROUNDS} rounds: median {statistics.median(taken):.1f} ms, p99 {p99:.1f} ms")
    print(f"stop the training and start in its place, {STOPS} rounds: median {statistics.median(stopped):.1f} ms")
    print("  without bringing the training back, which then has lost what it had not saved")
    return p99, "ms"


def _starts(node: Machine) -> bool:
    return node.api.post("/sessions", json={"user": "ursa", "share": "1/2"}).status_code == 201
