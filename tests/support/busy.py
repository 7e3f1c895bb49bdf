"""Sessions that compute without end on simulated cards in timed mode, under the real service and its agent."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from .compute import compiled
from .machine import Machine, SessionProgram

_COMPUTE = """
import os, subprocess
loads = []
def compute(microseconds, how, **environment):
    load = subprocess.Popen(
        ["./compute", str(microseconds), how, "0"], stdout=subprocess.PIPE, env=os.environ | environment
    )
    assert load.stdout.readline() == b"ready\\n"
    loads.append(load)
"""


class Busy:
    """A machine, and a program that computes without end in each session."""

    def __init__(self, folder: Path, made: Machine) -> None:
        self.machine = made
        self.program = compiled(folder)

    def prepare(self, user: str, share: str, **more: object) -> tuple[dict[str, Any], SessionProgram]:
        """A session in whose program `compute(microseconds, how, **environment)` starts kernels that take so long."""
        session, program = self.machine.start(user, share, **more)
        home = Path(program("import os; os.getcwd()") or program("os.getcwd()"))
        (home / "compute").write_bytes(self.program.read_bytes())
        (home / "compute").chmod(0o755)
        program(_COMPUTE)
        return session, program

    def start(self, user: str, share: str, **more: object) -> dict[str, Any]:
        """A session that computes."""
        session, program = self.prepare(user, share, **more)
        program("compute(1000, 'plain')")
        return session

    def shares(self, seconds: float = 1.0) -> dict[str, float]:
        """Percent of the card by session, as the device counts it."""

        def read() -> tuple[int, dict[int, int]]:
            with self.machine.cards.connect() as control:
                state = control.state()
            return state["clock_ns"], {row["pid"]: row["busy_ns"] for row in state["processes"]}

        before, had = read()
        time.sleep(seconds)
        after, has = read()
        found: dict[str, float] = {}
        for holder in self.machine.api.get("/processes").json()["processes"]:
            busy = has.get(holder["pid"], 0) - had.get(holder["pid"], 0)
            found[holder["session"]] = found.get(holder["session"], 0) + 100 * busy / (after - before)
        return found

    def patch(self, session: dict[str, Any], **body: object) -> dict[str, Any]:
        answer = self.machine.api.patch(f"/sessions/{session['id']}", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["session"]
        return found
