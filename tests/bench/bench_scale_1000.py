"""1,000 nodes with 8,000 cards join a cluster, and 8,000 sessions get a share: as `scale-100` with the raised limit.

Shown; there is no goal. At the end, what the service takes with all of it there and nothing asked.
"""

from __future__ import annotations

from tests.bench import cluster_scale as scale
from tests.bench.bench_scale_100 import RAISED, measure, words
from tests.bench.cluster import load

NODES, SESSIONS = 1000, 8000


def run() -> tuple[float, str]:
    """Seconds until all is granted."""
    print(f"{NODES} nodes, {NODES * scale.CARDS_OF_A_NODE} cards, {SESSIONS} sessions; {load()}")
    joined, granted = measure(NODES, SESSIONS, RAISED)
    print(words(joined, granted))
    return granted, "s"
