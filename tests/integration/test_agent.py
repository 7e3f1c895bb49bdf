"""The node's agent itself, on simulated cards: what no request of the service's reaches yet, and what slips away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.common import until
from support.machine import CUDA, SessionProgram

from gpuspawner.node.records import Record, Records
from gpuspawner.processes import start_time
from gpuspawner.simulation import SimulatedCards

GIB = 1 << 30


class Node:
    """An agent in a process of its own, asked by the line; with what its sessions run."""

    def __init__(self, folder: Path, cards: SimulatedCards, ending: ExitStack) -> None:
        self.state = folder / "state"
        self.cards = cards
        self._ending = ending
        (self.state / "node").mkdir(parents=True)

    def start(self) -> SessionProgram:
        """The agent, by the name `agent`."""
        env = {**self.cards.env(), "GPUSPAWNER_ENFORCERS": "shim"}
        asked = SessionProgram({"argv_prefix": [], "home": str(self.state), "env": env})
        self._ending.callback(asked.kill)
        asked("from pathlib import Path")
        asked("from gpuspawner.node.agent import Agent")
        asked("from gpuspawner.node.gate import Policy")
        asked(f"agent = Agent(Path({str(self.state)!r}), policy=Policy('end', 0.0, 0))")
        return asked

    def session(self, asked: SessionProgram, name: str, eighths: int) -> SessionProgram:
        """A session with a program in it that can use its card."""
        asked(f"started = agent.start({name!r}, 'ann', (agent.cards()[0].uuid,), {eighths})")
        home, prefix, env = asked("[str(started.home), started.argv_prefix, started.env]")
        program = SessionProgram({"argv_prefix": prefix, "home": home, "env": env})
        self._ending.callback(asked, f"agent.end({name!r}, 'the test is over')")
        self._ending.callback(program.kill)
        program(CUDA)
        return program


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as ending:
        cards = ending.enter_context(SimulatedCards("1*h100-80gb"))
        yield Node(tmp_path, cards, ending)


def changes(asked: SessionProgram) -> list[list[str]]:
    """One look: what has changed by itself."""
    found: list[list[str]] = asked("[[c.session, c.what, c.reason] for c in agent.watch()]")
    return found


def codes(asked: SessionProgram) -> Any:
    return asked("[notice.code for notice in agent.notices('s-1')]")


def test_a_forced_shrink_takes_nothing_away_and_gives_nothing_more(node: Node) -> None:
    asked = node.start()
    program = node.session(asked, "s-1", 4)
    assert program(f"allocate({20 * GIB})") == "CUDA_SUCCESS"
    assert program(f"allocate({10 * GIB})") == "CUDA_SUCCESS"
    changes(asked)
    asked("agent.resize('s-1', 1, forced=True)")
    assert program("info()")[0] == 0
    assert program("allocate(1)") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert codes(asked) == ["shrunk"]
    asked("agent.start('s-2', 'ben', (agent.cards()[0].uuid,), 4) and None")
    for _ in range(3):  # the policy would end it at once
        assert changes(asked) == []
    assert program("driver.cuMemFree(pointers.pop())[0].name") == "CUDA_SUCCESS"
    assert changes(asked) == []
    assert program("allocate(1)") == "CUDA_ERROR_OUT_OF_MEMORY"
    program("free_all()")
    assert changes(asked) == []
    assert codes(asked) == []
    assert program(f"allocate({9 * GIB})") == "CUDA_SUCCESS"
    assert program(f"allocate({9 * GIB})") == "CUDA_ERROR_OUT_OF_MEMORY"
    asked("agent.end('s-2', 'the test is over')")


def test_a_process_that_slipped_out_of_an_ended_session_is_killed(node: Node) -> None:
    """It runs outside, and the node remembers having seen it in the session: nothing of that may stay on the card."""
    code = CUDA + f"print(allocate({3 * GIB}), flush=True)\nimport time; time.sleep(1000)"
    env = os.environ | node.cards.env()
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as slipped:
        try:
            assert slipped.stdout is not None
            assert slipped.stdout.readline() == "CUDA_SUCCESS\n"
            known = (slipped.pid, start_time(slipped.pid) or 0)
            another = (os.getpid(), 1)  # that pid, but another process: it must live
            (card,) = _cards(node)
            records = Records(node.state / "node" / "agent.sqlite")
            records.put(Record("s-1", "ann", (card,), 8, "held", True, time.time(), pids=(known, another)))
            records.close()
            asked = node.start()
            assert asked("list(agent.free().values())") == [0]
            seen = until(lambda: changes(asked), what="the agent to see it")
            assert any("outlived the session and was ended" in reason for _, _, reason in seen)
            assert slipped.wait(20) == -9
            until(lambda: asked("list(agent.free().values())") == [8] or changes(asked) is None, what="its eighths")
        finally:
            slipped.kill()


def test_eighths_of_an_ended_session_wait_for_the_drivers_word(node: Node) -> None:
    """All its processes are gone, and a driver that stands still shows their memory all the same."""
    asked = node.start()
    program = node.session(asked, "s-1", 4)
    assert program(f"allocate({3 * GIB})") == "CUDA_SUCCESS"
    assert [what for _, what, _ in changes(asked)] == ["launched"]
    os.kill(node.cards.pid, signal.SIGSTOP)
    try:
        program.kill()
        until(lambda: "ended" in [what for _, what, _ in changes(asked)], 60, "its end to be seen")
        for _ in range(2):
            assert changes(asked) == []
            assert asked("list(agent.free().values())") == [4]
    finally:
        os.kill(node.cards.pid, signal.SIGCONT)
    until(lambda: "freed" in [what for _, what, _ in changes(asked)], 60, "its eighths to come back")
    assert asked("list(agent.free().values())") == [8]


def _cards(node: Node) -> list[str]:
    uuids = "import pynvml as N; N.nvmlInit(); print(N.nvmlDeviceGetUUID(N.nvmlDeviceGetHandleByIndex(0)))"
    env = os.environ | node.cards.env()
    done = subprocess.run([sys.executable, "-c", uuids], env=env, capture_output=True, text=True, check=True)
    return done.stdout.split()
