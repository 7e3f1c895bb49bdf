"""What telemetry costs the notebook server: eight simulated cards, sampled once a second, twenty open panels.

The processor time of the server's process while twenty panels look, less what it uses in as long a time in which none
does, with the same twenty WebSockets open.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.bench.notebook import Panels, notebook
from tests.support.machine import machine

SECONDS = 40.0
PANELS = 20


def run() -> tuple[float, str]:
    """Percent of one core."""
    with (
        tempfile.TemporaryDirectory() as folder,
        machine(Path(folder) / "state", "8*h100-80gb") as node,
        notebook(node, "8") as server,
    ):
        panels = Panels(server, PANELS)
        panels.open(5)  # once, so that nothing is imported or opened within the measurement
        panels.look_away()
        time.sleep(2)
        before = server.cpu_seconds()
        time.sleep(SECONDS)
        idle = server.cpu_seconds() - before

        events, started, before = panels.events, time.monotonic(), server.cpu_seconds()
        panels.open(SECONDS)
        watched, took = server.cpu_seconds() - before, time.monotonic() - started
        rate = (panels.events - events) / took / PANELS
        panels.look_away()
        panels.close()
    assert rate > 0.7, f"{rate:.2f} samples a second arrived"
    print(
        f"telemetry of 8 simulated cards at {rate:.2f} Hz to {PANELS} panels, {took:.0f} s: "
        f"{watched:.2f} s of processor time; without panels {idle:.2f} s in {SECONDS:.0f} s"
    )
    return 100 * (watched / took - idle / SECONDS), "percent"
