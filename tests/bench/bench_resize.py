"""From a request at the service to the new limit in force inside the running process, on simulated cards.

The process asks the driver for its memory (cuMemGetInfo) without pause and notes the monotonic clock, which all
processes of a machine share, at the first answer with the new limit.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from tests.support.machine import machine

ROUNDS = 1000
#: What the driver of an 80 GB H100 reports, simulated or not.
CARD = 85_520_809_984

_WAIT = """
import time
def wait_for(total):
    for _ in range(100_000_000):
        if info()[1] == total:
            return time.monotonic_ns()
    raise AssertionError(f"never {total}")
"""


def run() -> tuple[float, str]:
    """The 99th percentile over ROUNDS resizes, in milliseconds."""
    taken = []
    with tempfile.TemporaryDirectory() as folder, machine(Path(folder) / "state", "1*h100-80gb") as node:
        session, program = node.start("ann", "1/8")
        program(_WAIT)
        for round_ in range(ROUNDS):
            share, total = (("1/4", CARD // 4), ("1/8", CARD // 8))[round_ % 2]
            program.send(f"wait_for({total})")
            asked = time.monotonic_ns()
            answer = node.api.patch(f"/sessions/{session['id']}", json={"share": share})
            assert answer.status_code == 200, answer.text
            taken.append((program.receive() - asked) / 1e6)
    taken.sort()
    print(
        f"resize on simulated cards, {ROUNDS} rounds: median {statistics.median(taken):.2f} ms, "
        f"p99 {taken[int(ROUNDS * 0.99) - 1]:.2f} ms, longest {taken[-1]:.2f} ms"
    )
    return taken[int(ROUNDS * 0.99) - 1], "ms"
