"""Simulated cards for a test, and programs that use them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuspawner.simulation import SimulatedCards

PROGRAM = Path(__file__).with_name("driver_program.py")


class Refused(AssertionError):
    """A call in the program failed; `code` is the driver's, if it came from there."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code


class Program:
    """A process with the CUDA driver, told line by line what to do: `program("alloc(1 << 20)")`."""

    def __init__(self, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended with {self.process.wait()}"
        said = json.loads(line)
        if "error" in said:
            raise Refused(said["error"], said.get("code"))
        return said["value"]

    def __call__(self, code: str) -> Any:
        self.tell(code)
        return self.answer()

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def cards() -> Iterator[SimulatedCards]:
    with SimulatedCards("2*h100-80gb") as running:
        yield running


@pytest.fixture
def timed_cards() -> Iterator[SimulatedCards]:
    with SimulatedCards("1*a100-80gb", timed=True) as running:
        yield running


@pytest.fixture
def program(cards: SimulatedCards) -> Iterator[Callable[..., Program]]:
    """Makes programs on `cards`, or on others given; more environment variables by name."""
    made: list[Program] = []

    def make(on: SimulatedCards | None = None, **env: str) -> Program:
        made.append(Program({**os.environ, **(on or cards).env(), **env}))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def one(program: Callable[..., Program]) -> Program:
    """A program with a context on card 0."""
    running = program()
    running("context = start()")
    return running
