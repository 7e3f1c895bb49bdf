"""The fleet on a real API server with the stock scheduler; node and kubelet are played, so that no pod runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from support.cluster.cluster import OwnCluster
from support.common import until

from gpuspawner import kubernetes_names as names
from gpuspawner.capacity import requestable
from gpuspawner.card import GIB
from gpuspawner.errors import NoRoom
from gpuspawner.fleet.base import PodLaunch
from gpuspawner.fleet.kubernetes import KubernetesFleet
from gpuspawner.kubernetes_api import KubeApi
from gpuspawner.share import GPUShare

Object = dict[str, Any]
PATIENCE = 90.0  # a machine that does other things beside it


class PlayedNode(threading.Thread):
    """A node with cards that says that it is well. `publish` and `answer` are its agent's part."""

    def __init__(self, cluster: OwnCluster, name: str, cards: int) -> None:
        super().__init__(daemon=True)
        self.cluster, self.node = cluster, name
        self.eighths = [8] * cards
        self._over = threading.Event()
        size = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        status = {"capacity": size, "allocatable": size, "conditions": [self._ready()]}
        cluster.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status})
        cluster.api.create(self._slice())
        self.start()

    def uuid(self, index: int) -> str:
        return f"GPU-{self.node}-{index}"

    def _ready(self) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"type": "Ready", "status": "True", "reason": "Played", "message": "", "lastHeartbeatTime": now}

    def run(self) -> None:
        while not self._over.wait(5):
            change = {"status": {"conditions": [self._ready()]}}
            self.cluster.api.patch("Node", self.node, change, status=True)

    def close(self) -> None:
        self._over.set()
        self.join()
        self.cluster.api.delete("ResourceSlice", self.node)
        self.cluster.api.delete("Node", self.node)

    def _slice(self) -> Object:
        devices = []
        for index, eighths in enumerate(self.eighths):
            attributes = {
                f"{names.DRIVER}/{names.ATTRIBUTE_UUID}": {"string": self.uuid(index)},
                f"{names.DRIVER}/{names.ATTRIBUTE_PRODUCT}": {"string": "NVIDIA H100 80GB HBM3"},
                f"{names.DRIVER}/{names.ATTRIBUTE_MEMORY}": {"int": 80 * GIB},
                f"{names.DRIVER}/{names.ATTRIBUTE_INDEX}": {"int": index},
                f"{names.DRIVER}/{names.ATTRIBUTE_SIMULATED}": {"bool": True},
            }
            capacity: Object = {"value": str(eighths)}
            if allowed := [str(each) for each in requestable(eighths)]:
                capacity["requestPolicy"] = {"default": allowed[0], "validValues": allowed}
            devices.append(
                {
                    "name": names.device_name(self.uuid(index)),
                    "attributes": attributes,
                    "allowMultipleAllocations": True,
                    "capacity": {names.EIGHTHS: capacity},
                }
            )
        pool = {"name": self.node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": names.DRIVER, "nodeName": self.node, "pool": pool, "devices": devices}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": self.node},
            "spec": spec,
        }

    def publish(self, index: int, eighths: int) -> None:
        self.eighths[index] = eighths
        self.cluster.api.patch("ResourceSlice", self.node, {"spec": self._slice()["spec"]})

    def answer(self, session: str, namespace: str, eighths: int, request: int) -> None:
        claim = self.cluster.api.get("ResourceClaim", session, namespace)
        result = claim["status"]["allocation"]["devices"]["results"][0]
        condition = {
            "type": names.RESIZED,
            "status": "True",
            "reason": names.REASON_IN_FORCE,
            "message": "",
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        said = {
            **{key: result[key] for key in ("driver", "pool", "device", "shareID")},
            "data": {names.DATA_EIGHTHS: eighths, names.DATA_REQUEST: request},
            "conditions": [condition],
        }
        self.cluster.api.patch("ResourceClaim", session, {"status": {"devices": [said]}}, namespace, status=True)


@pytest.fixture
def node(own_cluster: OwnCluster) -> Iterator[PlayedNode]:
    if own_cluster.api.find("DeviceClass", names.DEVICE_CLASS) is None:
        selector = {"cel": {"expression": f'device.driver == "{names.DRIVER}"'}}
        own_cluster.api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": names.DEVICE_CLASS},
                "spec": {"selectors": [selector]},
            }
        )
    made = PlayedNode(own_cluster, "played-1", 2)
    yield made
    made.close()


@pytest.fixture
def hub(own_cluster: OwnCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    with own_cluster.namespace("fleet-" + request.node.name.replace("_", "-")[5:45].strip("-")) as name:
        yield name
        for pod in own_cluster.api.list("Pod", name):  # there is no kubelet to do it
            own_cluster.api.delete("Pod", pod["metadata"]["name"], name, grace=0)


@pytest.fixture
def fleet(own_cluster: OwnCluster, node: PlayedNode, hub: str) -> Iterator[KubernetesFleet]:
    made = KubernetesFleet(lambda: KubeApi.connect(str(own_cluster.kubeconfig)), hub, "one", answer_seconds=PATIENCE)
    until(lambda: [state.free_eighths for state in made.cards()] == [8, 8], PATIENCE, "the cards")
    yield made
    made.close()


def make_pod(cluster: OwnCluster, name: str, launch: PodLaunch) -> None:
    """The pod that the spawner would make."""
    claims = [{"name": "gpu", "resourceClaimName": launch.claim}]
    container = {"name": "notebook", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    meta = {
        "name": name,
        "namespace": launch.namespace,
        "labels": dict(launch.labels),
        "annotations": dict(launch.annotations),
    }
    spec = {"containers": [container], "resourceClaims": claims}
    cluster.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def allocation(cluster: OwnCluster, session: str, namespace: str) -> list[Object]:
    claim = cluster.api.find("ResourceClaim", session, namespace) or {}
    found: list[Object] = (claim.get("status", {}).get("allocation") or {}).get("devices", {}).get("results", [])
    return found


def test_the_whole_life_of_a_session(
    own_cluster: OwnCluster, node: PlayedNode, hub: str, fleet: KubernetesFleet
) -> None:
    card = node.uuid(1)
    grant, launch = fleet.start("s-1", "Ann Ö@example.org", GPUShare(2), card, server="two")
    assert [each.uuid for each in grant.cards] == [card]
    make_pod(own_cluster, "jupyter-ann", launch)
    (result,) = until(lambda: allocation(own_cluster, "s-1", hub), PATIENCE, "the scheduler to place it")
    assert result["device"] == names.device_name(card), "where the service has placed it"
    assert result["consumedCapacity"] == {names.EIGHTHS: "2"}
    node.answer("s-1", hub, 2, 1)
    until(lambda: fleet.alive("s-1"), PATIENCE)
    assert {state.card.uuid: state.free_eighths for state in fleet.cards()} == {node.uuid(0): 8, card: 6}

    # a grow: the node publishes less before it answers
    growing = threading.Thread(target=fleet.resize, args=("s-1", 4))
    growing.start()

    def wish() -> Object:
        found: Object = own_cluster.api.get("ResourceClaim", "s-1", hub)["metadata"]["annotations"]
        return found

    until(lambda: wish()[names.WANTED_NUMBER] == "2", PATIENCE)
    node.publish(1, 6)
    node.answer("s-1", hub, 4, 2)
    growing.join(PATIENCE)
    now = fleet.grant("s-1")
    assert now
    assert now.eighths_per_card == 4
    until(lambda: fleet.cards([card])[0].free_eighths == 4, PATIENCE)
    with pytest.raises(NoRoom, match="No whole card"):
        fleet.start("s-2", "bob", GPUShare(8), card)

    # the stock scheduler's sums come out right by themselves: of what is published, 6, it has given away 2
    _, second = fleet.start("s-3", "bob", GPUShare(4), card)
    make_pod(own_cluster, "jupyter-bob", second)
    until(lambda: allocation(own_cluster, "s-3", hub), PATIENCE, "what is left to be given away")
    assert fleet.cards([card])[0].free_eighths == 0

    # an end: the claim is kept until its pod is gone, and then is gone too
    assert not fleet.end("s-1", "asked")
    assert own_cluster.api.get("Pod", "jupyter-ann", hub)["metadata"]["deletionTimestamp"]
    assert fleet.grant("s-1") is not None
    own_cluster.api.delete("Pod", "jupyter-ann", hub, grace=0)  # the kubelet's part
    until(lambda: own_cluster.api.find("ResourceClaim", "s-1", hub) is None, PATIENCE, "the claim to go")
    until(lambda: fleet.grant("s-1") is None, PATIENCE)
    node.publish(1, 8)
    until(lambda: fleet.cards([card])[0].free_eighths == 4, PATIENCE)


def test_what_a_full_card_published_less_of_waits(
    own_cluster: OwnCluster, node: PlayedNode, hub: str, fleet: KubernetesFleet
) -> None:
    """A claim that a stale view has placed on a card which has just grown full is never allocated there."""
    card = node.uuid(0)
    _, launch = fleet.start("s-1", "ann", GPUShare(4), card)
    node.publish(0, 2)
    make_pod(own_cluster, "jupyter-ann", launch)

    def unschedulable() -> bool:
        conditions = own_cluster.api.get("Pod", "jupyter-ann", hub)["status"].get("conditions", [])
        return any(each.get("reason") == "Unschedulable" for each in conditions)

    until(unschedulable, PATIENCE, "the scheduler to find no place")
    assert allocation(own_cluster, "s-1", hub) == []
    changes: list[str] = []

    def told() -> bool:
        changes.extend(change.reason for change in fleet.watch() if change.what == "ended")
        return bool(changes)

    until(told, PATIENCE, "the service to give it up")
    assert changes[0].startswith("to be placed again: the pod cannot run where its card is")
    again, _ = fleet.start("s-2", "ann", GPUShare(4))
    assert [each.uuid for each in again.cards] == [node.uuid(1)]


def test_several_cards_in_one_claim(
    own_cluster: OwnCluster, node: PlayedNode, hub: str, fleet: KubernetesFleet
) -> None:
    _, launch = fleet.start("s-1", "ann", GPUShare(16))
    make_pod(own_cluster, "jupyter-ann", launch)
    results = until(lambda: allocation(own_cluster, "s-1", hub), PATIENCE, "the scheduler to place it")
    assert {each["device"] for each in results} == {names.device_name(node.uuid(index)) for index in range(2)}
    assert {each["consumedCapacity"][names.EIGHTHS] for each in results} == {"8"}
    until(lambda: {state.free_eighths for state in fleet.cards()} == {0}, PATIENCE)
