"""Grants a second by way of the service over bare scheduling of the same claims, in turns in the same run.

Bare: the claims that the service would write, each for a certain card, and their pods, written by this program. By the
service: it chooses the card, writes the claim and its ledger, and this program makes the pod. Both end when the
scheduler has allocated all. kwok plays the nodes, so that no pod runs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuspawner.fleet.objects import claim_manifest, session_labels
from gpuspawner.share import GPUShare
from tests.bench import cluster_scale as scale
from tests.bench.cluster import NAMESPACE, load, need, service
from tests.support.cluster.cluster import OwnCluster, cluster
from tests.support.cluster.load import Service
from tests.support.common import until

NODES, SESSIONS, ROUNDS = 20, 200, 3
SHARE = "1/4"


def _bare(made: OwnCluster, count: int) -> None:
    share = GPUShare.parse(SHARE)
    of_a_card = 8 // share.eighths_per_card

    def begin(number: int) -> None:
        name, card = f"bare-{number}", number // of_a_card
        uuid = f"GPU-sim-{card // scale.CARDS_OF_A_NODE}-{card % scale.CARDS_OF_A_NODE}"
        made.api.create(claim_manifest(name, "bare", NAMESPACE, f"u{number}", "", share, (uuid,)))
        made.api.create(scale.pod(name, name, session_labels(name, "bare", f"u{number}"), {}))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(begin, range(count)))


def _clear(made: OwnCluster, running: Service) -> None:
    """As if nobody had been there."""
    for pod in made.api.list("Pod", NAMESPACE):
        made.api.delete("Pod", pod["metadata"]["name"], NAMESPACE, grace=0)
    for claim in made.api.list("ResourceClaim", NAMESPACE):
        made.api.delete("ResourceClaim", claim["metadata"]["name"], NAMESPACE)
    until(lambda: not made.api.list("ResourceClaim", NAMESPACE), 300, "the claims to go")
    with running.client() as client:
        until(lambda: not client.get("/sessions").json()["sessions"], 300, "the sessions to end", every=0.2)
    all_free = NODES * scale.CARDS_OF_A_NODE * 8
    until(lambda: scale.schedulable(running) == all_free, 300, "all cards to be free", every=0.2)


def run() -> tuple[float, str]:
    """The median rate by way of the service over the median of bare scheduling."""
    need()
    bare: list[float] = []
    ours: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(with_node=False, scheduler_requests=1000) as made,
        made.namespace(NAMESPACE),
        service(made, Path(folder) / "state") as running,
    ):
        scale.device_class(made)
        scale.join(made, NODES, "sim")
        _clear(made, running)
        print(f"{SESSIONS} sessions on {NODES * scale.CARDS_OF_A_NODE} cards; {load()}")
        for _ in range(ROUNDS):
            for taken, begin in (
                (bare, lambda: _bare(made, SESSIONS)),
                (ours, lambda: scale.start(made, running, SESSIONS, SHARE)),
            ):
                began = time.monotonic()
                begin()
                scale.wait_granted(made, SESSIONS)
                taken.append(SESSIONS / (time.monotonic() - began))
                _clear(made, running)
    print(f"bare: {' '.join(f'{each:.1f}' for each in bare)} grants a second")
    print(f"by the service: {' '.join(f'{each:.1f}' for each in ours)} grants a second")
    return statistics.median(ours) / statistics.median(bare), "times"
