"""A driver that falls silent, and cards that are away when the service starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.common import until
from support.machine import SERVICE_TOKEN, Machine, machine

from gpuspawner.node.limits import abi, launch
from gpuspawner.share import GPUShare

WHOLE = 81559 << 20
HARD_LIMIT = """
import sys
from gpuspawner.node.drivers.nvml import NVMLDriver
from gpuspawner.node.limits.driver_limits import read_limit
print(read_limit(NVMLDriver(), *sys.argv[1:])[0])
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path / "state", "2*h100-80gb") as made:
        yield made


@contextmanager
def silence(node: Machine) -> Iterator[None]:
    """The driver answers nobody."""
    os.kill(node.cards.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.cards.pid, signal.SIGCONT)


def limits_agree(node: Machine, session: str) -> bool:
    """Whether the driver holds the session's cgroup to what its limit file says, where the driver has such limits."""
    folder = node.state / "node" / "sessions" / session
    (limit,) = abi.read_limits(launch.limit_path(folder))
    words = (folder / "launch.plan").read_bytes().split(b"\0")
    if b"cgroup" not in words:
        return True
    cgroup = words[words.index(b"cgroup") + 1].decode()
    done = subprocess.run(
        [sys.executable, "-c", HARD_LIMIT, limit.uuid, cgroup],
        env=node.env(),
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout) == limit.memory_bytes


def test_a_silent_driver_is_named_and_nothing_is_lost(node: Machine) -> None:
    session, program = node.start("ann", "1/8")
    path = f"/sessions/{session['id']}"
    with silence(node):
        answers: list[httpx.Response] = []

        def ask(share: str) -> None:
            headers = {"Authorization": f"Bearer {SERVICE_TOKEN}"}
            with httpx.Client(base_url=node.api.base_url, headers=headers, timeout=60) as api:
                answers.append(api.patch(path, json={"share": share}))

        crowd = [threading.Thread(target=ask, args=(share,)) for share in ("1/2", "1/4", "1", "1/2")]
        for each in crowd:
            each.start()
        for each in crowd:
            each.join()
        for answer in answers:
            if answer.status_code != 200:  # a machine without the driver's limits needs no answer of it to grow
                assert answer.status_code == 503, answer.text
                assert answer.json()["error"]["code"] == "driver"
                assert "has not answered" in answer.json()["error"]["message"]
        assert node.api.get("/health").status_code == 200
        assert node.api.get(path).status_code == 200
        started = node.api.post("/sessions", json={"user": "bob", "share": "1/8"})
        assert started.status_code in (201, 503), started.text
    share = node.api.get(path).json()["share"]
    assert share in {"1/8"} | {a.json()["session"]["share"] for a in answers if a.status_code == 200}
    answer = node.api.patch(path, json={"share": "1/2"})
    assert answer.status_code == 200, answer.text
    until(lambda: limits_agree(node, session["id"]), 30, "the driver's limit to be the one on record")
    assert program(f"allocate({30 << 30})") == "CUDA_SUCCESS"
    assert program(f"allocate({11 << 30})") == "CUDA_ERROR_OUT_OF_MEMORY"
    for each in node.api.get("/sessions").json()["sessions"]:
        assert node.api.delete(f"/sessions/{each['id']}").status_code == 200
    until(lambda: node.free_eighths() == 16, 40, "every eighth to be free")


def test_what_the_driver_was_told_in_vain_is_told_again(node: Machine) -> None:
    session, _ = node.start("ann", "1/2")
    with silence(node):
        answer = node.api.patch(f"/sessions/{session['id']}", json={"share": "1/8"})
        assert answer.status_code in (200, 503), answer.text
    now = node.api.get(f"/sessions/{session['id']}").json()["share"]
    assert now == ("1/8" if answer.status_code == 200 else "1/2")
    until(lambda: limits_agree(node, session["id"]), 30, "the driver's limit to be the one on record")


def test_a_card_that_is_lost_at_the_start_is_there_when_its_driver_shows_it(node: Machine) -> None:
    session, program = node.start("ann", "1/4")
    card = session["cards"][0]["index"]
    program("free_all()")
    node.kill_service()
    node.cards.control(f"lose {card}")
    node.start_service()
    assert node.api.get("/health").json()["cards"] == 1
    assert node.free_eighths() == 8
    refused = node.api.post("/sessions", json={"user": "bob", "share": "2"})
    assert refused.status_code == 409, refused.text
    node.cards.control(f"restore {card}")
    until(lambda: node.api.get("/health").json()["cards"] == 2, 60, "the card to be taken up")
    until(lambda: node.free_eighths() == 14, 30, "what is on record to count again")
    shown = node.api.get(f"/sessions/{session['id']}").json()
    assert (shown["share"], [each["index"] for each in shown["cards"]]) == ("1/4", [card])
    (limit,) = abi.read_limits(launch.limit_path(node.state / "node" / "sessions" / session["id"]))
    assert (limit.eighths, limit.memory_bytes) == (2, GPUShare(2).memory_bytes(WHOLE))
    assert limit.context_bytes > 0, "measured as at a start"
    answer = node.api.patch(f"/sessions/{session['id']}", json={"share": "1"})
    assert answer.status_code == 200, answer.text
    assert program(f"allocate({70 << 30})") == "CUDA_SUCCESS"


def test_no_card_at_the_start_and_all_of_them_later(node: Machine) -> None:
    node.kill_service()
    for card in (0, 1):
        node.cards.control(f"lose {card}")
    node.start_service()
    assert node.api.get("/offers").json()["offers"] == []
    for card in (0, 1):
        node.cards.control(f"restore {card}")
    until(lambda: node.free_eighths() == 16, 60, "the cards to be taken up")
    node.start("ann", "1/8")
