"""Nodes, scheduler and kubelet on top of the API server in memory, as far as a fleet sees them."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from gpuspawner import kubernetes_names as names
from gpuspawner.card import GIB
from gpuspawner.fleet.kubernetes import KubernetesFleet
from support.fake_kubernetes import FakeKubernetes, Object

NAMESPACE = "hub"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
NODES = "/api/v1/nodes"
H100 = "NVIDIA H100 80GB HBM3"
KEEP = "resource.kubernetes.io/delete-protection"


def uuid(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


class FakeCluster(FakeKubernetes):
    """Cards in slices. `allocate`, `answer` and the like are what scheduler, node and kubelet do."""

    def fleet(self, instance: str = "one", **more: Any) -> KubernetesFleet:
        return KubernetesFleet(self.connect, NAMESPACE, instance, sync_seconds=10, **more)

    def node(self, name: str, cards: int = 2, **attributes: Any) -> None:
        """A node with cards of 80 GiB, all free."""
        ready = {"type": "Ready", "status": "True"}
        self.put(f"{NODES}/{name}", {"spec": {}, "status": {"conditions": [ready]}})
        devices = [self._device(name, index, attributes) for index in range(cards)]
        spec = {"driver": names.DRIVER, "nodeName": name, "pool": {"name": name}, "devices": devices}
        self.put(f"{SLICES}/{name}", {"spec": spec})

    def _device(self, node: str, index: int, attributes: dict[str, Any]) -> Object:
        own: dict[str, Any] = {
            names.ATTRIBUTE_UUID: uuid(node, index),
            names.ATTRIBUTE_PRODUCT: H100,
            names.ATTRIBUTE_MEMORY: 80 * GIB,
            names.ATTRIBUTE_INDEX: index,
            names.ATTRIBUTE_GRADE: "guarded",
            names.ATTRIBUTE_SIMULATED: True,
            **{name: value[index] if isinstance(value, list) else value for name, value in attributes.items()},
        }
        kinds = {str: "string", int: "int", bool: "bool"}
        shown = {f"{names.DRIVER}/{name}": {kinds[type(value)]: value} for name, value in own.items()}
        name = names.device_name(uuid(node, index))
        return {"name": name, "attributes": shown, "capacity": {names.EIGHTHS: {"value": "8"}}}

    def publish(self, node: str, index: int, eighths: int, taint: str | None = None) -> None:
        """The node publishes another capacity, or a taint."""

        def change(found: Object) -> None:
            device = found["spec"]["devices"][index]
            device["capacity"][names.EIGHTHS]["value"] = str(eighths)
            device["taints"] = [{"key": names.HEALTH_TAINT, "value": taint, "effect": "NoSchedule"}] if taint else []

        self.change(f"{SLICES}/{node}", change)

    def condition(self, node: str, ready: str = "True", cordoned: bool = False) -> None:
        def change(found: Object) -> None:
            found["spec"] = {"unschedulable": True} if cordoned else {}
            found["status"]["conditions"] = [{"type": "Ready", "status": ready}]

        self.change(f"{NODES}/{node}", change)

    def allocate(self, session: str, at: str = CLAIMS) -> None:
        """The scheduler gives the claim the cards that it asks for, and its pod may use it."""

        def change(claim: Object) -> None:
            asked = claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"][names.EIGHTHS]
            results = []
            for wanted in claim["metadata"]["annotations"][names.CARDS].split(","):
                node = wanted.removeprefix("GPU-").rpartition("-")[0]
                results.append(
                    {
                        "driver": names.DRIVER,
                        "request": "card",
                        "pool": node,
                        "device": names.device_name(wanted),
                        "shareID": f"share-{session}",
                        "consumedCapacity": {names.EIGHTHS: asked},
                    }
                )
            claim["status"] = {"allocation": {"devices": {"results": results}}}
            claim["metadata"]["finalizers"] = [KEEP]

        self.change(f"{at}/{session}", change)

    def answer(
        self, session: str, eighths: int, request: int, reason: str = names.REASON_IN_FORCE, **data: Any
    ) -> None:
        """The node writes what is in force."""

        def change(claim: Object) -> None:
            result = claim["status"]["allocation"]["devices"]["results"][0]
            said = {names.DATA_EIGHTHS: eighths, names.DATA_REQUEST: request, **data}
            resized = {
                "type": names.RESIZED,
                "status": "True" if reason == names.REASON_IN_FORCE else "False",
                "reason": reason,
                "message": f"because of {reason}",
            }
            place = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
            claim["status"]["devices"] = [{**place, "data": said, "conditions": [resized]}]

        self.change(f"{CLAIMS}/{session}", change)

    def refuse(self, session: str, reason: str = names.REASON_NO_ROOM, at: str = CLAIMS) -> None:
        """The node does not prepare the claim."""

        def change(claim: Object) -> None:
            result = claim["status"]["allocation"]["devices"]["results"][0]
            ready = {"type": names.READY, "status": "False", "reason": reason, "message": "Others were faster."}
            claim["status"]["devices"] = [
                {**{key: result[key] for key in ("driver", "pool", "device", "shareID")}, "conditions": [ready]}
            ]

        self.change(f"{at}/{session}", change)

    def refused(self, session: str) -> bool:
        claim = self.get(f"{CLAIMS}/{session}") or {}
        devices = claim.get("status", {}).get("devices") or [{}]
        return any(each["type"] == names.READY for each in devices[0].get("conditions", []))

    def pod(self, name: str, launch: Any, phase: str = "Running") -> Object:
        """The spawner makes the pod of a session, and it runs; its claim is reserved for it."""
        meta = {"labels": dict(launch.labels), "annotations": dict(launch.annotations)}
        made = self.put(f"{PODS}/{name}", {"metadata": meta, "status": {"phase": phase}})
        if launch.claim is not None:
            self.reserve(launch.claim, name, made["metadata"]["uid"])
        return made

    def reserve(self, session: str, pod: str, uid: str, at: str = CLAIMS) -> None:
        self.change(
            f"{at}/{session}",
            lambda claim: claim["status"].update(reservedFor=[{"resource": "pods", "name": pod, "uid": uid}]),
        )

    def let_go(self, session: str) -> None:
        """No pod uses the claim any more: it is deallocated, and nothing keeps it."""

        def change(claim: Object) -> None:
            claim["status"] = {}
            claim["metadata"]["finalizers"] = []

        self.change(f"{CLAIMS}/{session}", change)


class Answering(threading.Thread):
    """Node, scheduler and kubelet at work: what is claimed is allocated, what is wished is granted, pods run. Of the
    claims that a pod uses the first `refusing` are refused, as by a card that has just grown full."""

    def __init__(self, cluster: FakeCluster, refusing: int = 0) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._refusing = refusing
        self._over = threading.Event()

    def __enter__(self) -> Answering:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(0.005):
            for session, claim in self._cluster.under(CLAIMS).items():
                with contextlib.suppress(KeyError):  # it was deleted meanwhile
                    self._serve(session, claim)
            for name, pod in self._cluster.under(PODS).items():
                with contextlib.suppress(KeyError):
                    self._run(name, pod)

    def _serve(self, session: str, claim: Object) -> None:
        if claim["metadata"].get("deletionTimestamp"):
            self._cluster.let_go(session)
            return
        if "allocation" not in claim.get("status", {}):
            self._cluster.allocate(session)
            claim = self._cluster.get(f"{CLAIMS}/{session}") or {}
        notes = claim["metadata"]["annotations"]
        wanted, number = int(notes[names.WANTED_EIGHTHS]), int(notes[names.WANTED_NUMBER])
        devices = claim["status"].get("devices")
        refused = devices and "data" not in devices[0]
        # as a node does: nothing is prepared, and so nothing answered, for a claim that no pod uses
        if (
            not refused
            and claim["status"].get("reservedFor")
            and (not devices or devices[0]["data"][names.DATA_REQUEST] < number)
        ):
            self._cluster.answer(session, wanted, number)

    def _run(self, name: str, pod: Object) -> None:
        if pod.get("status", {}).get("phase") == "Running":
            return
        for use in pod.get("spec", {}).get("resourceClaims", []):
            session = use["resourceClaimName"]
            claim = self._cluster.get(f"{CLAIMS}/{session}")
            if claim is None or "allocation" not in claim.get("status", {}):
                return
            self._cluster.reserve(session, name, pod["metadata"]["uid"])
            if self._refusing:
                self._refusing -= 1
                self._cluster.refuse(session)
            if self._cluster.refused(session):
                return
        ready = {"name": "notebook", "ready": True, "image": "i", "imageID": "i", "restartCount": 0, "state": {}}
        running = {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [ready]}
        self._cluster.change(f"{PODS}/{name}", lambda each: each.update(status=running))
