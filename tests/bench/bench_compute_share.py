"""How exactly two sessions have their shares of a card's time that both use without end: a quarter and a half.

Simulated cards in timed mode; what each has in a second is the device's own count. Where the machine allows it, the
programs and the device run before all others, so that what is measured is not how busy the machine is.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.support.compute import ground

SECONDS = 20
EXPECTED = (25.0, 50.0)


def _before_others(pid: int) -> bool:
    try:
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(10))
    except PermissionError:
        return False
    return True


def run() -> tuple[float, str]:
    """Points (percent of the card) off the share in the worst second."""
    with tempfile.TemporaryDirectory() as name, ground(Path(name)) as card:
        quarter, half = card.group(), card.group()
        half.limit((4, 0))
        quarter.limit((2, 500))
        half.load(1000)
        quarter.load(1000)
        pids = [card.cards.pid, half.processes[0].pid, quarter.processes[0].pid]
        first = all(map(_before_others, pids))
        card.shares([quarter, half])  # the first kernels are owed for
        seconds = [card.shares([quarter, half]) for _ in range(SECONDS)]
    worst = [max(abs(second[i] - EXPECTED[i]) for second in seconds) for i in (0, 1)]
    means = [sum(second[i] for second in seconds) / SECONDS for i in (0, 1)]
    beside = "" if first else ", beside other programs"
    print(
        f"kernels of 1 ms on a simulated card, {SECONDS} seconds{beside}: "
        f"a quarter had {means[0]:.2f} % of it, worst second {worst[0]:.2f} points off; "
        f"a half had {means[1]:.2f} %, {worst[1]:.2f} points off"
    )
    return max(worst), "points"
