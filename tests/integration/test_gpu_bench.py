"""The script for a real card, run on a simulated one: all that needs no kernels really runs, the rest is skipped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuspawner.simulation import SimulatedCards

SCRIPT = Path(__file__).parents[1] / "bench" / "gpu" / "shim.sh"


def test_the_script_for_a_real_card_runs_and_tells_the_truth(tmp_path: Path) -> None:
    with SimulatedCards("1*h100-80gb") as cards:
        env = os.environ | cards.env() | {"PYTHON": sys.executable}
        done = subprocess.run([SCRIPT, tmp_path], env=env, capture_output=True, text=True, timeout=500, check=False)
    found = json.loads((tmp_path / "results.json").read_text())
    sections = {row["section"]: row for row in found["sections"]}
    assert "simulated" in found["machine"]["card"], done.stdout
    assert {row["status"] for row in found["sections"]} <= {"ok", "skipped"}, done.stdout
    quarter = found["machine"]["memory_bytes"] // 4
    cap = sections["cap"]["figures"]
    assert cap["over_bytes"] == 0
    assert quarter - (64 << 20) < cap["allocated_bytes"] <= quarter
    steps = sections["resize"]["figures"]
    assert steps["held"]
    assert quarter < steps["at_1/2"] <= 2 * quarter
    # without a namespace nothing keeps a program from the driver, and the script says so
    assert sections["escapes"]["figures"] == {"no_variables": "past the limit", "drivers_own_path": "past the limit"}
    assert "resize" in done.stdout


@pytest.mark.parametrize("script", ["shim.sh", "runtime.sh"])
def test_the_script_is_clean(script: str) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", SCRIPT.with_name(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
