"""The runtime's readings by NVML, on a simulated card that has a counter of energy, or none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.common import until

from gpuspawner.simulation import SimulatedCards
from gpuspawner.simulation.control import Control

ROOT = Path(__file__).parents[2]
_MEASURES = """
import json, sys
from gpuspawner_runtime.energy import Meter
meter = Meter(shares=lambda: None).start()
print("started", flush=True)
for line in sys.stdin:
    used = meter.read()
    print(json.dumps([used.card_joules, used.card_method, used.load]), flush=True)
meter.stop()
"""


class Program:
    """A program with a meter that says what it has read when it is asked."""

    def __init__(self, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MEASURES],
            env={**env, "PYTHONPATH": str(ROOT / "images" / "runtime")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "started\n"

    def ask(self) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0


@pytest.mark.parametrize("counter", [True, False])
def test_joules_are_counted_or_integrated_and_called_what_they_are(counter: bool) -> None:
    with SimulatedCards("1*h100-80gb") as cards:
        with Control(cards.socket) as control:
            control.set(0, "power", 400_000)  # milliwatts
            if not counter:
                control.unsupported(0, "energy")
        program = Program(os.environ | cards.env())
        try:
            first = program.ask()
            began = time.monotonic()
            grown = until(lambda: (now := program.ask())[0] and now[0] > (first[0] or 0) + 400 and now, 60)
            taken = time.monotonic() - began
        finally:
            program.end()
    joules, method, load = grown
    assert method.startswith(
        "measured: the card's counter (NVML" if counter else "estimated: power read every 1 s (NVML"
    )
    assert load is not None
    # 400 W for so long as was waited, and for no longer than the program has run: a wrong unit would be far off
    assert 0.2 * 400 * taken < joules - (first[0] or 0) < 5 * 400 * (taken + 1)


def test_without_counter_and_power_the_energy_is_unknown() -> None:
    with SimulatedCards("1*h100-80gb") as cards:
        with Control(cards.socket) as control:
            for metric in ("energy", "power"):
                control.unsupported(0, metric)
        program = Program(os.environ | cards.env())
        try:
            program.ask()
            joules, method, load = program.ask()
        finally:
            program.end()
    assert (joules, method) == (None, None)
    assert load is not None  # that is told all the same
