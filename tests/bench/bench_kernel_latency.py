"""Whether telemetry delays kernels: round trips of small cells through the notebook server, with eight busy kernels.

Eight clients each keep a kernel busy with one small cell after the other. Telemetry is on and off by turns in the same
run; the result is the 99th percentile of execute_reply with it over that without it.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path

from tests.bench.notebook import Kernel, Notebook, notebook
from tests.support.machine import machine

KERNELS = 8
TURNS = 12
TURN_SECONDS = 5.0
CELL = "sum(range(20_000))"


def _turn(kernels: list[Kernel], seconds: float) -> list[float]:
    """Round trips of all kernels for so long, in milliseconds."""
    taken: list[float] = []
    until = time.monotonic() + seconds

    def work(kernel: Kernel) -> None:
        while time.monotonic() < until:
            started = time.monotonic()
            kernel.execute(CELL)
            taken.append(1000 * (time.monotonic() - started))

    threads = [threading.Thread(target=work, args=(kernel,)) for kernel in kernels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def _p99(taken: list[float]) -> float:
    return statistics.quantiles(taken, n=100)[98]


def _measure(server: Notebook) -> tuple[list[float], list[float]]:
    kernels = [server.kernel() for _ in range(KERNELS)]
    _turn(kernels, 3)
    on: list[float] = []
    off: list[float] = []
    for turn in range(TURNS):
        looked_at = turn % 4 in (1, 2)  # off on on off: what drifts with time falls on both alike
        server.watch("panel", 30 if looked_at else 0)
        (on if looked_at else off).extend(_turn(kernels, TURN_SECONDS))
    return on, off


def run() -> tuple[float, str]:
    """The ratio of the 99th percentiles."""
    with (
        tempfile.TemporaryDirectory() as folder,
        machine(Path(folder) / "state", "1*h100-80gb") as node,
        notebook(node, "1/2") as server,
    ):
        on, off = _measure(server)
    print(
        f"execute_reply with {KERNELS} busy kernels: telemetry on p50 {statistics.median(on):.1f} ms, "
        f"p99 {_p99(on):.1f} ms ({len(on)} cells); off p50 {statistics.median(off):.1f} ms, p99 {_p99(off):.1f} ms"
    )
    return _p99(on) / _p99(off), "ratio"
