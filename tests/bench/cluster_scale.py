"""Cards and sessions of many nodes on a control plane: kwok plays the nodes, this file their agents' slices, and the
stock scheduler gives out the cards. What is measured is the control plane and the service; no pod runs."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuspawner import kubernetes_names as names
from gpuspawner.card import GIB
from tests.bench.cluster import NAMESPACE
from tests.support.cluster.cards import agent_roles
from tests.support.cluster.cluster import OwnCluster
from tests.support.cluster.load import Service
from tests.support.common import until

CARDS_OF_A_NODE = 8
_AT_ONCE = 16
_TOLERATED = [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]


def device_class(made: OwnCluster) -> None:
    """The class that claims name."""
    made.api.create(next(each for each in agent_roles("nobody") if each["kind"] == "DeviceClass"))


def publish(made: OwnCluster, node: str) -> None:
    """What the agent of a node with whole cards says."""
    devices = []
    for index in range(CARDS_OF_A_NODE):
        uuid = f"GPU-{node}-{index}"
        attributes = {
            names.ATTRIBUTE_UUID: {"string": uuid},
            names.ATTRIBUTE_PRODUCT: {"string": "NVIDIA H100 80GB HBM3"},
            names.ATTRIBUTE_MEMORY: {"int": 80 * GIB},
            names.ATTRIBUTE_INDEX: {"int": index},
            names.ATTRIBUTE_SIMULATED: {"bool": True},
        }
        policy = {"default": "1", "validValues": ["1", "2", "4", "8"]}
        devices.append(
            {
                "name": names.device_name(uuid),
                "attributes": {f"{names.DRIVER}/{name}": value for name, value in attributes.items()},
                "allowMultipleAllocations": True,
                "capacity": {names.EIGHTHS: {"value": "8", "requestPolicy": policy}},
            }
        )
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": names.DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    made.api.create(
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}
    )


def join(made: OwnCluster, count: int, prefix: str) -> None:
    """Make that many nodes with their cards."""
    named = made.add_simulated_nodes(count, prefix=prefix, wait=False)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda name: publish(made, name), named))


def schedulable(service: Service) -> int:
    """Eighths that the service could give out now."""
    with service.client() as client:
        offers = client.get("/offers").json()["offers"]
    return sum(int(offer["free_places"]) for offer in offers if offer["share"] == "1/8")


def start(made: OwnCluster, service: Service, count: int, share: str, first: int = 0) -> None:
    """Start sessions at the service and make their pods, as hubs do."""

    def begin(numbers: range) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", service.port + 3, timeout=300)
        headers = {"Authorization": f"Bearer {service.token}", "Content-Type": "application/json"}
        for number in numbers:
            user = f"u{number}"
            body = json.dumps({"user": user, "share": share})
            connection.request("POST", "/services/gpuspawner/api/v1/sessions", body, headers)
            answer = connection.getresponse()
            said = json.loads(answer.read())
            assert answer.status == 201, said
            made.api.create(pod(user, said["pod"]["claim"], said["pod"]["labels"], said["pod"]["annotations"]))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(begin, [range(first + at, first + count, _AT_ONCE) for at in range(_AT_ONCE)]))


def pod(name: str, claim: str, labels: dict[str, str], notes: dict[str, str]) -> dict[str, Any]:
    """A pod on a simulated node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": notes},
        "spec": {
            "containers": [{"name": "notebook", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
            "tolerations": _TOLERATED,
        },
    }


def granted(made: OwnCluster) -> int:
    """Claims that have a card."""
    claims = made.api.list("ResourceClaim", NAMESPACE)
    return sum(1 for each in claims if (each.get("status") or {}).get("allocation"))


def wait_granted(made: OwnCluster, count: int, within: float = 600.0) -> None:
    """Until that many claims have a card."""
    until(lambda: granted(made) >= count, within, lambda: f"{granted(made)} of {count} claims to get a card", every=0.1)


@dataclass
class Used:
    """What a process has used: MiB resident now, and seconds of processors so far."""

    memory: float
    seconds: float

    @classmethod
    def of(cls, pid: int) -> Used:
        status = Path(f"/proc/{pid}/status").read_text()
        resident = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("VmRSS"))
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return cls(resident / 1024, (int(fields[11]) + int(fields[12])) / 100)


def at_rest(service: Service, seconds: float = 20.0) -> str:
    """Its memory, and what it computes while nothing is asked."""
    assert service.process is not None
    before = Used.of(service.process.pid)
    time.sleep(seconds)
    after = Used.of(service.process.pid)
    share = 100 * (after.seconds - before.seconds) / seconds
    return f"the service at rest: {after.memory:.0f} MiB, {share:.1f} % of a core"
