"""What the benchmarks on a cluster have in common: a cluster of their own with a service over it."""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuspawner.errors import Unavailable
from tests.support.cluster import build
from tests.support.cluster.cards import CardNode, Program, card_node, wait_running
from tests.support.cluster.cluster import OwnCluster, cluster, why_not
from tests.support.cluster.hub import roles
from tests.support.cluster.load import Service, pod_of

NAMESPACE = "bench"
#: What the driver of an 80 GB H100 reports, simulated or not.
CARD = 85_520_809_984


@dataclass
class Bench:
    """A cluster's node with simulated cards, and a service."""

    node: CardNode
    service: Service

    @property
    def cluster(self) -> OwnCluster:
        return self.node.cluster

    def session(self, user: str, share: str) -> tuple[str, Program]:
        """A session whose pod runs, and the program in it."""
        with self.service.client() as client:
            answer = client.post("/sessions", json={"user": user, "share": share})
        assert answer.status_code == 201, answer.text
        content = pod_of(user, answer.json()["pod"])
        del content["spec"]["containers"][0]["command"]
        self.cluster.api.create(content)
        wait_running(self.cluster, user, NAMESPACE)
        return answer.json()["session"]["id"], Program(self.cluster, user, NAMESPACE, container="notebook")


class Asker:
    """Sends the requests over one connection: little more than the bytes."""

    def __init__(self, service: Service, session: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", service.port + 3, timeout=60)
        self._path = f"/services/gpuspawner/api/v1/sessions/{session}"
        self._headers = {"Authorization": f"Bearer {service.token}", "Content-Type": "application/json"}

    def resize(self, share: str) -> None:
        self._connection.request("PATCH", self._path, json.dumps({"share": share}), self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body


def need() -> None:
    """Build what a cluster needs. Raises Unavailable where none can be started."""
    reason = why_not()
    if reason:
        raise Unavailable(f"It needs a cluster: {reason}.")
    build.programs(["etcd", "kubernetes", "containerd", "kwok"])


@contextmanager
def bench(cards: str = "1*h100-80gb", scheduler_requests: int | None = None) -> Iterator[Bench]:
    """Everything, for a while."""
    need()
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(scheduler_requests=scheduler_requests) as made,
        card_node(made, cards) as node,
        made.namespace(NAMESPACE),
        service(made, Path(folder) / "state") as running,
    ):
        yield Bench(node, running)


@contextmanager
def service(made: OwnCluster, state: Path) -> Iterator[Service]:
    """A service over a cluster."""
    for content in roles(NAMESPACE):
        if made.api.find(content["kind"], content["metadata"]["name"], NAMESPACE) is None:
            made.api.create(content)
    running = Service(made.config_for("gpuspawner:service"), NAMESPACE, state)
    running.start()
    try:
        yield running
    finally:
        running.kill()


def percentile(taken: list[float], percent: int) -> float:
    """Of that many sorted values the one that `percent` are not above."""
    return sorted(taken)[max(0, -(-len(taken) * percent // 100) - 1)]


def line(what: str, taken: list[float], unit: str = "ms") -> str:
    """Median, p99 and the longest."""
    median = statistics.median(taken)
    return (
        f"{what}: median {median:.1f} {unit}, p99 {percentile(taken, 99):.1f} {unit}, longest {max(taken):.1f} {unit}"
    )


def load() -> str:
    """How busy the machine is otherwise, for who reads the figures."""
    cores = subprocess.run(["nproc"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{cores} cores, load average {Path('/proc/loadavg').read_text().split()[0]}"
