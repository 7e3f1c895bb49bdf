"""A session's pod: what KubeSpawner makes, with the session's claim in it. Pure."""

from __future__ import annotations

from typing import Any

from kubernetes_asyncio.client import CoreV1ResourceClaim, V1PodResourceClaim, V1ResourceRequirements

from gpuspawner.spawner.client import Json

#: What the claim is called within the pod.
CLAIM = "gpuspawner"


def with_session(pod: Any, session: Json, how: Json) -> Any:
    """The pod with the labels and annotations of its session, and where it has a card with its claim, which the
    notebook's container alone uses. `how`: the service's `pod`."""
    pod.metadata.labels = {**(pod.metadata.labels or {}), **how["labels"]}
    pod.metadata.annotations = {**(pod.metadata.annotations or {}), **how["annotations"]}
    notebook = next(each for each in pod.spec.containers if each.name == "notebook")
    claim = how["claim"]
    if claim is None:
        return pod
    pod.spec.resource_claims = [
        *(pod.spec.resource_claims or []),
        V1PodResourceClaim(name=CLAIM, resource_claim_name=claim),
    ]
    resources = notebook.resources or V1ResourceRequirements()
    resources.claims = [*(resources.claims or []), CoreV1ResourceClaim(name=CLAIM)]
    notebook.resources = resources
    return pod


def session_variables(session: Json, service_url: str) -> dict[str, str]:
    """What programs in the session may read. Where there is no card, none that the node has beside is seen."""
    found = {"GPUSPAWNER_SESSION": session["id"], "GPUSPAWNER_SERVICE_URL": service_url}
    if not session["cards"]:
        found |= {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    return found
