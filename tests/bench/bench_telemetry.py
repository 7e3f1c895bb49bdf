"""What telemetry costs the notebook server: eight simulated cards, sampled once a second, twenty open panels.

The processor time of the server's process while twenty panels are open, which renew their watch as the browser's do,
less what it uses in as long a time in which none is, with the same twenty WebSockets open. What opening them takes is
printed beside it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.bench.notebook import Panels, notebook
from tests.support.machine import machine

SECONDS = 45.0
PANELS = 20


def run() -> tuple[float, str]:
    """Percent of one core."""
    with (
        tempfile.TemporaryDirectory() as folder,
        machine(Path(folder) / "state", "8*h100-80gb") as node,
        notebook(node, "8") as server,
    ):
        panels = Panels(server, PANELS)
        panels.open()  # once, so that nothing is imported or opened within the measurement
        panels.look(5)
        panels.look_away()
        time.sleep(2)
        before = server.cpu_seconds()
        time.sleep(SECONDS)
        idle = server.cpu_seconds() - before

        before = server.cpu_seconds()
        panels.open()
        opening = server.cpu_seconds() - before
        events, started, before = panels.events, time.monotonic(), server.cpu_seconds()
        panels.look(SECONDS)
        watched, took = server.cpu_seconds() - before, time.monotonic() - started
        rate = (panels.events - events) / took / PANELS
        panels.look_away()
        panels.close()
    assert rate > 0.7, f"{rate:.2f} samples a second arrived"
    print(
        f"telemetry of 8 simulated cards at {rate:.2f} Hz to {PANELS} panels, {took:.0f} s: "
        f"{watched:.2f} s of processor time; opening them {opening:.2f} s; "
        f"without panels {idle:.2f} s in {SECONDS:.0f} s"
    )
    return 100 * (watched / took - idle / SECONDS), "percent"
