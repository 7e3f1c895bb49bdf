"""What the queue's rules gain over one line without resizing: points of utilisation, on traces made up by chance.

The mix in the traces was not measured anywhere; the figure compares rules on the same input.
"""

from __future__ import annotations

import statistics

from gpuspawner.queue import POLICIES
from gpuspawner.queue.command import table
from gpuspawner.queue.replay import replay
from gpuspawner.queue.trace import synthetic

JOBS = 3000
CARDS = 16
SEEDS = (1, 2, 3)


def run() -> tuple[float, str]:
    """The gain in the median trace."""
    gains = []
    for seed in SEEDS:
        trace = synthetic(JOBS, CARDS, seed=seed)
        results = [replay(trace, rules, ask_every=JOBS // 100) for rules in POLICIES.values()]
        print(f"synthetic trace, seed {seed}: {JOBS} jobs, {CARDS} cards; waits: median / 99th percentile")
        print(table(results))
        found = {result.policy: result.utilisation for result in results}
        gains.append((found["standard"] - found["fifo"]) * 100)
    return statistics.median(gains), "points"
