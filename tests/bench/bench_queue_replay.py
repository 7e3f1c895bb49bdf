"""How long 100,000 jobs take through the queue's own code in virtual time, by the standard rules on 16 cards.

The baseline, in the same run, is one line in which nobody gives way.
"""

from __future__ import annotations

import time

from gpuspawner.queue import FIFO, STANDARD, Rules
from gpuspawner.queue.replay import replay
from gpuspawner.queue.trace import Trace, synthetic

JOBS = 100_000
CARDS = 16
#: A queue that is never empty for long and does not grow for ever either.
LOAD = 0.9


def _seconds(trace: Trace, rules: Rules) -> float:
    begin = time.perf_counter()
    replay(trace, rules)
    return time.perf_counter() - begin


def run() -> tuple[float, str]:
    """Seconds by the standard rules."""
    trace = synthetic(JOBS, CARDS, load=LOAD)
    line = _seconds(trace, FIFO)
    ours = _seconds(trace, STANDARD)
    print(f"{JOBS} jobs that ask for {LOAD:.0%} of {CARDS} cards, in virtual time: one line {line:.1f} s")
    return ours, "s"
