"""100 nodes with 800 cards join a cluster, and 400 sessions get a share: the control plane's part and the service's.

kwok plays the nodes, so that no pod runs. The scheduler's limit of requests is raised, as an operator of a cluster can;
the same with the limit that it has by itself, which who rents a cluster has to live with, is printed beside it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.bench import cluster_scale as scale
from tests.bench.cluster import NAMESPACE, load, need, service
from tests.support.cluster.cluster import cluster
from tests.support.common import until

NODES, SESSIONS = 100, 400
RAISED = 1000


def measure(nodes: int, sessions: int, requests: int | None) -> tuple[float, float]:
    """Seconds until all cards can be given out, and until all sessions have theirs, both from the first node on."""
    need()
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(with_node=False, scheduler_requests=requests) as made,
        made.namespace(NAMESPACE),
        service(made, Path(folder) / "state") as running,
    ):
        scale.device_class(made)
        made.ready_for_simulated_nodes()
        began = time.monotonic()
        scale.join(made, nodes, "sim")
        eighths = nodes * scale.CARDS_OF_A_NODE * 8
        until(lambda: scale.schedulable(running) == eighths, 1800, lambda: f"{scale.schedulable(running)} eighths")
        joined = time.monotonic() - began
        scale.start(made, running, sessions, "1/4")
        scale.wait_granted(made, sessions, within=3600)
        granted = time.monotonic() - began
        print(f"  {scale.at_rest(running, 10)}")
    return joined, granted


def run() -> tuple[float, str]:
    """Seconds until all is granted, with the raised limit."""
    print(f"{NODES} nodes, {NODES * scale.CARDS_OF_A_NODE} cards, {SESSIONS} sessions; {load()}")
    joined, granted = measure(NODES, SESSIONS, RAISED)
    print(f"scheduler with {RAISED} requests a second: {words(joined, granted)}")
    print(f"scheduler with its own limit: {words(*measure(NODES, SESSIONS, None))}")
    return granted, "s"


def words(joined: float, granted: float) -> str:
    """What was measured."""
    return f"all cards can be given out after {joined:.1f} s, all sessions have theirs after {granted:.1f} s"
