"""A control plane alone, without a node: for tests of what only speaks to the API server and the scheduler."""

from __future__ import annotations

from support.cluster.cluster import Cluster
from support.common import until


def test_it_serves_what_shares_need(control_plane: Cluster) -> None:
    version = control_plane.api.http.get("/version").json()
    assert (int(version["major"]), int(version["minor"].rstrip("+"))) >= (1, 36)
    resources = control_plane.api.http.get("/apis/resource.k8s.io/v1").json()["resources"]
    assert "resourceclaims/status" in {each["name"] for each in resources}


def test_the_scheduler_looks_at_pods(control_plane: Cluster) -> None:
    with control_plane.namespace("lonely") as namespace:
        pod = {"name": "one", "namespace": namespace}
        spec = {"containers": [{"name": "main", "image": "none"}]}
        control_plane.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": spec})

        def conditions() -> list[dict[str, str]]:
            found: list[dict[str, str]] = control_plane.api.get("Pod", "one", namespace)["status"].get("conditions", [])
            return found

        until(lambda: any(each.get("reason") == "Unschedulable" for each in conditions()), 60, "the scheduler's word")
