"""Sessions that compute with what others leave idle: the service and its agent on simulated cards in timed mode."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.compute import HERE
from support.limits import wait_until
from support.machine import Machine, machine

_COMPUTE = """
import subprocess
load = subprocess.Popen(["./compute", "1000", "plain", "0"], stdout=subprocess.PIPE)
assert load.stdout.readline() == b"ready\\n"
"""


class Busy:
    """A machine, and a program that computes without end in each session."""

    def __init__(self, folder: Path, made: Machine) -> None:
        self.machine = made
        self.program = folder / "compute"
        subprocess.run(["cc", "-O1", "-o", self.program, HERE / "compute.c", "-ldl"], check=True)

    def start(self, user: str, share: str, **more: object) -> dict[str, Any]:
        session, program = self.machine.start(user, share, **more)
        home = Path(program("import os; os.getcwd()") or program("os.getcwd()"))
        (home / "compute").write_bytes(self.program.read_bytes())
        (home / "compute").chmod(0o755)
        program(_COMPUTE)
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


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Busy]:
    with machine(tmp_path / "state", "1*h100-80gb", timed=True) as made:
        yield Busy(tmp_path, made)


def test_what_is_idle_is_lent_and_comes_back(busy: Busy) -> None:
    borrower = busy.start("ann", "1/4", burst=True)
    assert borrower["burst"] is True
    wait_until(lambda: busy.shares()[borrower["id"]] > 80, "the whole card for the only one that wants it")
    owner = busy.start("ben", "1/2")
    assert owner["burst"] is False
    wait_until(lambda: 40 < busy.shares()[owner["id"]] < 60, "the owner's half for the owner")
    wait_until(lambda: 35 < busy.shares()[borrower["id"]] < 60, "its quarter, and the one that nobody holds")

    assert busy.patch(borrower, burst=False)["burst"] is False
    wait_until(lambda: busy.shares()[borrower["id"]] < 32, "its quarter, and no more")
    both = busy.patch(borrower, share="1/8", burst=True)
    assert [both["share"], both["burst"]] == ["1/8", True]
    busy.machine.api.delete(f"/sessions/{owner['id']}")
    wait_until(lambda: busy.shares()[borrower["id"]] > 80, "the whole card again")

    busy.machine.kill_service()  # and what was lent stays so until somebody looks
    busy.machine.start_service()
    assert busy.machine.api.get(f"/sessions/{borrower['id']}").json()["burst"] is True
    wait_until(lambda: busy.shares()[borrower["id"]] > 80, "the whole card after a new start of the service")


def test_what_burst_may_be(tmp_path: Path) -> None:
    with machine(tmp_path / "state", "1*h100-80gb", env={"GPUSPAWNER_BURST": "yes"}) as made:
        session, _ = made.start("ann", "1/4")
        assert session["burst"] is True  # as the operator has set it
        assert made.start("ben", "1/4", burst=False)[0]["burst"] is False
        for body in ({"burst": "yes"}, {"burst": 1}, {}, {"burst": None}, {"share": None}):
            answer = made.api.patch(f"/sessions/{session['id']}", json=body)
            assert answer.status_code == 422, body
            assert answer.json()["error"]["field"] in ("burst", "share")
        answer = made.api.patch(f"/sessions/{session['id']}", json={"share": "1", "burst": False})
        assert answer.status_code == 409  # does not fit, and so nothing is changed
        assert made.api.get(f"/sessions/{session['id']}").json()["burst"] is True
