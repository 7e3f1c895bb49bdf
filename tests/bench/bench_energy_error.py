"""How far a session's energy in the ledger is off what its card used, in percent: a card whose power is scripted, as a
training uses it (idle, busy for 40 seconds, idle), held whole by one session.

Beside it CodeCarbon (`pip install codecarbon`), which asks the same card every second while the session is there; where
it is not installed that is said."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.machine import Machine, machine

#: Watts and seconds, one after the other.
SCRIPT = ((70, 5.0), (640, 25.0), (700, 15.0), (70, 5.0))
_CODECARBON = """
import logging, sys
from codecarbon import OfflineEmissionsTracker
logging.disable(logging.CRITICAL)
tracker = OfflineEmissionsTracker(country_iso_code="DEU", measure_power_secs=1, save_to_file=False)
print("ready", flush=True)
sys.stdin.readline()
tracker.start()
print("runs", flush=True)
sys.stdin.readline()
tracker.stop()
print(tracker._total_gpu_energy.kWh * 3.6e6, flush=True)
"""


def run() -> tuple[float, str]:
    """Percent, of the ledger."""
    with tempfile.TemporaryDirectory() as folder, machine(Path(folder), "1*h100-80gb") as node:
        node.cards.control(f"set 0 power {SCRIPT[0][0] * 1000}")
        time.sleep(2.5)  # the service looks at counters every two seconds
        beside = _beside(node)
        begin = time.perf_counter()
        session, program = node.start("ann", "1")
        started = time.perf_counter()
        if beside is not None:
            _ask(beside)
            ours = time.perf_counter()
        used = (started - begin) / 2 * SCRIPT[0][0]  # it was written down at some moment in between
        changed = started
        for watts, seconds in SCRIPT:
            node.cards.control(f"set 0 power {watts * 1000}")
            time.sleep(seconds)
            now = time.perf_counter()
            used += watts * (now - changed)
            changed = now
        if beside is not None:
            theirs = float(_ask(beside))
            print(f"CodeCarbon: {_off(theirs, used - SCRIPT[0][0] * (ours - started)):.2f} % off")
        program.kill()
        node.api.delete(f"/sessions/{session['id']}")
        rows = node.api.get("/events", params={"session": session["id"]}).json()["events"]
        ledger = sum(row["energy_mj"] or 0 for row in rows) / 1000
        print(f"the card used {used:.0f} J, the ledger says {ledger:.0f} J")
    return _off(ledger, used), "%"


def _off(said: float, used: float) -> float:
    return abs(said - used) / used * 100


def _beside(node: Machine) -> subprocess.Popen[str] | None:
    if importlib.util.find_spec("codecarbon") is None:
        print("CodeCarbon is not installed: pip install codecarbon")
        return None
    # it asks NVML, as we do, but only where this program is there
    smi = node.state / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    env = {**os.environ, **node.cards.env(), "PATH": f"{smi.parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-W", "ignore", "-c", _CODECARBON]
    program = subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert program.stdout is not None
    program.stdout.readline()
    return program


def _ask(program: subprocess.Popen[str]) -> str:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("\n")
    program.stdin.flush()
    return program.stdout.readline()
