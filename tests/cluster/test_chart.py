"""The chart against helm and a real API server: what it makes is valid, has few rights, and keeps its secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from support.cluster.api import Object
from support.cluster.cluster import Cluster, OwnCluster
from support.cluster.helm import Helm, HelmError
from support.common import until

from gpuspawner.fleet.clear import clear
from gpuspawner.kubernetes_api import KubeApi

CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "simulated": {
        "simulation": {"enabled": True, "timed": True},
        "hub": {"storage": {"enabled": False}},
        "service": {"storage": {"enabled": False}, "clearRefusedPods": False},
        "session": {"storage": {"type": "none"}},
        "networkPolicy": {"enabled": False},
        "priorityClasses": {"create": False},
        "deviceClass": {"create": False},
    },
    "attached": {"hub": {"enabled": False}},
    "agents-only": {"hub": {"enabled": False}, "service": {"enabled": False}, "nameOverride": "cards"},
    "everything": {
        "image": {"prefix": "registry.example.org:5000/gpu/", "tag": "7", "pullSecrets": ["pull"]},
        "hub": {
            "image": "registry.example.org/own-hub:1",
            "baseUrl": "/gpu/",
            "publicUrl": "https://gpu.example.org/gpu/",
            "config": {"JupyterHub": {"authenticator_class": "dummy"}},
            "extraConfig": {"one": "c.JupyterHub.concurrent_spawn_limit = 3"},
            "extraEnv": [{"name": "A", "value": "b"}],
            "databaseUrl": "postgresql://hub:secret@db/hub",
            "storage": {"storageClass": "fast"},
            "nodeSelector": {"kind": "small"},
            "tolerations": [{"key": "small", "operator": "Exists"}],
        },
        "proxy": {"service": {"type": "NodePort", "nodePort": 30080, "annotations": {"a": "b"}}},
        "service": {
            "databaseUrl": "postgresql://service:secret@db/service",
            "storage": {"storageClass": "-"},
            "policy": {"version": 1, "currency": "EUR"},
            "extraEnv": [{"name": "A", "value": "b"}],
        },
        "session": {"cpu": {"limit": 2}, "profiles": [{"display_name": "One"}]},
        "idle": {"warnSeconds": 600, "cullSeconds": 3600},
        "agent": {"privileged": True, "runtimeClassName": "nvidia", "cards": "nvidia", "maxUnavailable": "10%"},
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
        "podDisruptionBudgets": {"enabled": True},
        "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "hosts": ["gpu.example.org"],
            "tls": [{"hosts": ["gpu.example.org"], "secretName": "tls"}],
        },
        "keepData": True,
    },
}


VALUES = {"deviceClass": {"create": False}, "image": {"prefix": "gpuspawner.test/none-", "pullPolicy": "Never"}}


@pytest.fixture(scope="module")
def helm() -> Iterator[Helm]:
    made = Helm()
    yield made
    made.close()


def pods(objects: list[Object]) -> dict[str, Object]:
    """The pod templates by their object's name."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in objects
        if each["kind"] in ("Deployment", "DaemonSet", "Job")
    }


@pytest.mark.parametrize("case", CASES)
def test_it_passes_lint(helm: Helm, case: str) -> None:
    helm.lint(CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_the_api_server_takes_all_of_it(helm: Helm, own_cluster: OwnCluster, case: str) -> None:
    with own_cluster.namespace(f"chart-{case}") as namespace:
        made = helm.template(CASES[case], namespace=namespace)
        # a kind that only the Prometheus operator brings
        known = [each for each in made if each["kind"] != "ServiceMonitor"]
        assert len(made) - len(known) == (3 if case == "everything" else 0)
        manifest = own_cluster.host.folder / f"chart-{case}.yaml"
        manifest.write_text(yaml.safe_dump_all(known))
        # strict: a field that the server does not know is an error
        words = ["--namespace", namespace, "create", "--dry-run=server", "--validate=strict", "-f", str(manifest)]
        said = own_cluster.kubectl(*words)
        assert len(said.splitlines()) == len(known)


def test_what_the_schema_does_not_know_is_refused(helm: Helm) -> None:
    with pytest.raises(HelmError, match=r"session/defaultShare|session\.defaultShare"):
        helm.template({"session": {"defaultShare": "1/3"}})
    with pytest.raises(HelmError, match="hubb"):
        helm.template({"hubb": {}})


def test_a_part_that_is_switched_off_is_not_there(helm: Helm) -> None:
    assert set(pods(helm.template(CASES["attached"]))) == {
        "gpu-gpuspawner-service",
        "gpu-gpuspawner-agent",
        "gpu-gpuspawner-uninstall",
    }
    alone = helm.template(CASES["agents-only"])
    assert set(pods(alone)) == {"gpu-cards-agent"}
    assert not [each for each in alone if each["kind"] == "Secret"]


@pytest.mark.parametrize("case", CASES)
def test_only_the_agent_is_root_and_nothing_can_become_it(helm: Helm, case: str) -> None:
    for name, pod in pods(helm.template(CASES[case])).items():
        of_node = name.endswith(("-agent", "-simulation"))
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["securityContext"]["runAsUser"] == (0 if of_node else 1000), name
        assert of_node or pod["securityContext"]["runAsNonRoot"] is True, name
        assert of_node or not any("hostPath" in volume for volume in pod.get("volumes", [])), name
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True, name
            if name.endswith("-agent") and case == "everything":
                assert security["privileged"] is True
                continue
            assert "privileged" not in security
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"]["drop"] == ["ALL"], name
            assert security["capabilities"].get("add", []) == (["KILL"] if name.endswith("-agent") else []), name


def hub_values(helm: Helm, given: dict[str, Any]) -> dict[str, Any]:
    (values,) = [
        json.loads(each["stringData"]["values.json"])
        for each in helm.template(given)
        if each["metadata"]["name"] == "gpu-gpuspawner-hub-values"
    ]
    return dict(values)


@pytest.mark.parametrize(
    ("session", "url"),
    [
        ({}, "/lab/tree/tour.ipynb"),
        ({"image": "example.org/lab:1"}, ""),
        ({"profiles": [{"display_name": "Lab"}]}, ""),
        ({"image": "example.org/lab:1", "defaultUrl": "/lab"}, "/lab"),
    ],
)
def test_servers_open_with_the_tour_where_their_image_has_it(helm: Helm, session: dict[str, Any], url: str) -> None:
    assert hub_values(helm, {"session": session})["default_url"] == url


def test_settings_reach_the_hub_as_they_are(helm: Helm) -> None:
    values = hub_values(helm, CASES["everything"])
    assert values["config"] == CASES["everything"]["hub"]["config"]
    assert values["base_url"] == "/gpu/"
    assert values["image"] == "registry.example.org:5000/gpu/notebook:7"
    assert values["service"] == "http://gpu-gpuspawner-service:8003/gpu/services/gpuspawner/api/v1"
    assert values["session"]["cpu"]["limit"] == 2


@pytest.fixture(scope="module")
def installed(own_cluster: OwnCluster) -> Iterator[tuple[Cluster, Helm, str]]:
    """A release whose images are nowhere: its objects are there, its pods wait."""
    helm = Helm(own_cluster.kubeconfig)
    with own_cluster.namespace("chart") as namespace:
        helm.install("gpu", namespace, VALUES)
        yield own_cluster, helm, namespace
        helm("uninstall", "gpu", "--namespace", namespace, "--no-hooks")
    helm.close()


def secrets(cluster: Cluster, namespace: str) -> dict[str, str]:
    found: dict[str, str] = cluster.api.get("Secret", "gpu-gpuspawner-secrets", namespace)["data"]
    return found


def test_secrets_are_kept_and_never_printed(installed: tuple[Cluster, Helm, str]) -> None:
    cluster, helm, namespace = installed
    before = secrets(cluster, namespace)
    assert len(set(before.values())) == len(before) == 7
    notes = helm.upgrade("gpu", namespace, {**VALUES, "hub": {"admins": ["ann"]}})
    assert secrets(cluster, namespace) == before
    helm("rollback", "gpu", "1", "--namespace", namespace)
    assert secrets(cluster, namespace) == before
    notes += helm("get", "notes", "gpu", "--namespace", namespace)
    assert "user_password" in notes
    decoded = [
        cluster.kubectl(
            "--namespace",
            namespace,
            "get",
            "secret",
            "gpu-gpuspawner-secrets",
            "--output",
            f"go-template={{{{.data.{name} | base64decode}}}}",
        )
        for name in before
    ]
    assert not [secret for secret in decoded if secret in notes]


def test_the_commands_of_the_notes_print_the_passwords(installed: tuple[Cluster, Helm, str]) -> None:
    cluster, helm, namespace = installed
    notes = helm("get", "notes", "gpu", "--namespace", namespace)
    lines = [line.strip() for line in notes.splitlines() if "get secret" in line]
    assert len(lines) == 2
    for line in lines:
        words = line.replace("'", "").split(" --output ")
        said = cluster.kubectl(*words[0].split()[1:], "--output", words[1])
        assert len(said) >= 20


def may(cluster: Cluster, namespace: str, account: str, verb: str, resource: str, where: str | None = None) -> bool:
    user = f"system:serviceaccount:{namespace}:gpu-gpuspawner-{account}"
    group, _, name = resource.rpartition("/") if resource.startswith("resource.k8s.io/") else ("", "", resource)
    name, _, part = name.partition(":")
    attributes = {"group": group, "resource": name, "subresource": part, "verb": verb, "namespace": where or ""}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    answer = cluster.api.http.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review)
    return bool(answer.raise_for_status().json()["status"]["allowed"])


def test_nobody_may_more_than_needed(installed: tuple[Cluster, Helm, str]) -> None:
    cluster, _, own = installed
    claims, slices = "resource.k8s.io/resourceclaims", "resource.k8s.io/resourceslices"
    until(lambda: may(cluster, own, "service", "patch", claims, own), 30, "the roles to be known")
    allowed = [
        ("hub", "create", "pods", own),
        ("hub", "create", "persistentvolumeclaims", own),
        ("service", "create", claims, own),
        ("service", "delete", claims, own),
        ("service", "list", claims, None),
        ("service", "delete", "pods", "default"),
        ("agent", "update", slices, None),
        ("agent", "list", claims, None),
        ("agent", "patch", f"{claims}:status", "default"),
    ]
    refused = [
        ("hub", "create", "pods", "default"),
        ("hub", "get", "secrets", own),
        ("hub", "patch", claims, own),
        ("hub", "create", "pods:exec", own),
        ("service", "create", "pods", own),
        ("service", "get", "secrets", own),
        ("service", "patch", claims, "default"),
        ("service", "patch", f"{claims}:status", own),
        ("service", "update", slices, None),
        ("agent", "patch", claims, own),
        ("agent", "create", claims, own),
        ("agent", "get", "pods", own),
        ("agent", "delete", "pods", own),
        ("agent", "get", "secrets", own),
        ("agent", "patch", "nodes", None),
    ]
    assert [each for each in allowed if not may(cluster, own, *each)] == []
    assert [each for each in refused if may(cluster, own, *each)] == []


def test_an_agent_writes_slices_of_its_node_alone(installed: tuple[Cluster, Helm, str]) -> None:
    cluster, _, namespace = installed

    def create(name: str, node: str, at: str | None) -> httpx.Response:
        """As the agent on the node `at`; dry, nothing is kept."""
        headers = {"Impersonate-User": f"system:serviceaccount:{namespace}:gpu-gpuspawner-agent"}
        if at is not None:
            headers["Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"] = at
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {"driver": "gpu.gpuspawner.io", "nodeName": node, "pool": pool, "devices": []},
        }
        path = "/apis/resource.k8s.io/v1/resourceslices?dryRun=All"
        return cluster.api.http.post(path, json=body, headers=headers)

    until(
        lambda: create("own", "node-1", "node-1").status_code == 201, 60, lambda: create("own", "node-1", "node-1").text
    )
    # a policy is in force a moment after it was made
    until(
        lambda: create("other", "node-2", "node-1").status_code == 422,
        60,
        lambda: create("other", "node-2", "node-1").text,
    )
    assert "writes slices of that node alone, not of node-2" in create("other", "node-2", "node-1").json()["message"]
    assert create("nobody", "node-1", None).status_code == 422


async def test_before_an_uninstallation_its_own_sessions_end(own_cluster: OwnCluster) -> None:
    api, kinds = own_cluster.api, ("Pod", "ResourceClaim")
    with own_cluster.namespace("clear") as namespace:
        for instance in ("ours", "others"):
            labels = {"gpuspawner.io/session": f"{instance}-1", "gpuspawner.io/instance": instance}
            meta = {"name": instance, "namespace": namespace, "labels": labels}
            request = {"name": "card", "exactly": {"deviceClassName": "gpuspawner"}}
            claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta}
            api.create({**claim, "spec": {"devices": {"requests": [request]}}})
            used = {"resourceClaims": [{"name": "card", "resourceClaimName": instance}]}
            spec = {"containers": [{"name": "main", "image": "none"}], **used}
            api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        connection = await KubeApi.connect(str(own_cluster.kubeconfig))
        try:
            assert await clear(connection, namespace, "ours", 60) == 2
        finally:
            await connection.close()
        left = [each["metadata"]["name"] for kind in kinds for each in api.list(kind, namespace)]
        assert left == ["others", "others"]
