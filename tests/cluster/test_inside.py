"""Ways past a share from inside a pod, each really tried: other containers of the pod, the driver without the shim,
the node's files, other pods. What came of each stands in docs/explanation/security.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.cluster.cards import CardNode, Program, card_node, claim, pod, wait_running
from support.cluster.cluster import OwnCluster
from support.common import until

#: What the driver of an 80 GB H100 reports, simulated or not.
CARD = 85_520_809_984
GIB = 1 << 30
OUT_OF_MEMORY = 2
DRIVER = "/run/gpuspawner/driver/libcuda.so.1"
Object = dict[str, Any]


@pytest.fixture(scope="module")
def node(own_cluster: OwnCluster) -> Iterator[CardNode]:
    """Its agent ends who is over the limit after a second."""
    with card_node(own_cluster, "1*h100-80gb", settings={"GPUSPAWNER_EXCESS_SECONDS": "1"}) as made:
        yield made


@pytest.fixture
def place(node: CardNode, namespace: str) -> Iterator[str]:
    """A namespace; afterwards all of the card is offered again."""
    api = node.cluster.api
    yield namespace
    for each in api.list("Pod", namespace):
        api.delete("Pod", each["metadata"]["name"], namespace, grace=0)
    for each in api.list("ResourceClaim", namespace):
        api.delete("ResourceClaim", each["metadata"]["name"], namespace)
    until(lambda: node.published() == [8], 120, lambda: f"the whole card to be offered: {node.published()}")


def start(node: CardNode, place: str, eighths: int, content: Object | None = None, name: str = "one") -> None:
    """A claim with its pod, which runs."""
    node.cluster.api.create(claim(name, place, eighths))
    node.cluster.api.create(content or pod(name, place, name))
    wait_running(node.cluster, name, place)


def more(content: Object, kind: str, name: str, **change: Any) -> Object:
    """The pod with another container of that kind, made like its first."""
    other = {**content["spec"]["containers"][0], "name": name, **change}
    content["spec"].setdefault(kind, []).append(other)
    return content


def shell(node: CardNode, place: str, command: str, container: str = "main") -> str:
    """What a command in the pod prints, and with which status it ended."""
    words = ["exec", "one", "-c", container, "--", "sh", "-c", f"{command} 2>&1; echo status $?"]
    return node.cluster.kubectl("--namespace", place, *words)


def test_two_containers_of_a_pod_have_one_share_together(node: CardNode, place: str) -> None:
    start(node, place, 4, more(pod("one", place, "one"), "containers", "second"))
    first = Program(node.cluster, "one", place)
    second = Program(node.cluster, "one", place, container="second")
    assert first.allocate(30 * GIB) == 0
    assert second.allocate(15 * GIB) == OUT_OF_MEMORY
    assert second.allocate(5 * GIB) == 0
    assert first.allocate(6 * GIB) == OUT_OF_MEMORY
    third = Program(node.cluster, "one", place)  # who looks for slots of dead processes
    assert third.allocate(6 * GIB) == OUT_OF_MEMORY
    first.close()
    until(lambda: node.used() < 10 * GIB, 60, "the first one's memory to be free")
    assert second.allocate(25 * GIB) == 0, "what it had is the others' again"
    for each in (second, third):
        each.close()


def test_an_init_container_leaves_nothing_behind(node: CardNode, place: str) -> None:
    content = pod("one", place, "one")
    command = ["/bin/sh", "-c", f"echo alloc {6 * GIB} | /bin/card"]
    start(node, place, 1, more(content, "initContainers", "before", command=command))
    assert node.cluster.kubectl("--namespace", place, "logs", "one", "-c", "before").split() == ["ready", "0"]
    program = Program(node.cluster, "one", place)
    assert program.allocate(6 * GIB) == 0
    assert program.allocate(6 * GIB) == OUT_OF_MEMORY
    program.close()


def test_a_container_without_the_claim_has_no_card(node: CardNode, place: str) -> None:
    start(node, place, 1, more(pod("one", place, "one"), "containers", "beside", resources={}))
    said = shell(node, place, "/bin/card; ls /run/gpuspawner", "beside")
    assert "no driver" in said
    assert "No such file" in said


def test_an_ephemeral_container_takes_what_its_neighbour_has_and_is_ended(node: CardNode, place: str) -> None:
    """It cannot ask for the claim; in its neighbour's PID namespace it reaches the driver through /proc."""
    start(node, place, 1)
    api = node.cluster.api
    path = f"/api/v1/namespaces/{place}/pods/one/ephemeralcontainers"
    model = api.get("Pod", "one", place)["spec"]["containers"][0]
    added: Object = {"name": "late", "image": model["image"], "imagePullPolicy": "Never"}
    added |= {"targetContainerName": "main", "securityContext": model["securityContext"]}

    def add(content: Object) -> httpx.Response:
        kind = {"Content-Type": "application/strategic-merge-patch+json"}
        return api.http.patch(path, json={"spec": {"ephemeralContainers": [content]}}, headers=kind)

    refused = add({**added, "resources": {"claims": [{"name": "card"}]}})
    assert refused.status_code == 422, refused.text
    assert add(added).status_code == 200

    def runs() -> bool:
        states = api.get("Pod", "one", place)["status"].get("ephemeralContainerStatuses") or []
        return any("running" in each["state"] for each in states)

    until(runs, 120, "the ephemeral container")
    assert "no driver" in shell(node, place, "/bin/card", "late")
    # nor any way to the card, so that it takes its neighbour's for that too
    socket = {"GPUSPAWNER_SIM_SOCKET": "/proc/1/root/run/gpuspawner/cards.sock"}
    _is_ended(node, Program(node.cluster, "one", place, f"/proc/1/root{DRIVER}", container="late", env=socket))


def test_the_driver_without_the_shim_is_ended(node: CardNode, place: str) -> None:
    start(node, place, 1)
    honest = Program(node.cluster, "one", place)
    _is_ended(node, Program(node.cluster, "one", place, DRIVER))
    until(lambda: honest.allocate(5 * GIB) == 0, 60, "whoever keeps to the share to go on")
    honest.close()


def _is_ended(node: CardNode, program: Program) -> None:
    """It gets more than its share, and is ended for it."""
    assert program.allocate(30 * GIB) == 0
    with pytest.raises(AssertionError, match="the program ended"):
        program.receive()
    until(lambda: node.used() < 10 * GIB, 60, "its memory to be free")
    until(lambda: "ended" in node.agent.said(), 30, node.agent.said)
    program.close()


@pytest.mark.parametrize("user", [0, 1000])
def test_the_nodes_files_cannot_be_changed(node: CardNode, place: str, user: int) -> None:
    """Not as the container's root either, with the capabilities that a container has by itself."""
    content = pod("one", place, "one")
    content["spec"]["containers"][0]["securityContext"] = {"runAsUser": user}
    start(node, place, 1, content)
    limits, limit = "/run/gpuspawner/limits", "/run/gpuspawner/limits/limit"
    for command in (
        f"echo x >{limit}",
        f"rm {limit}",
        f"ln -s /tmp/x {limits}/other",
        f"mount -o remount,rw {limits}",
        f"mount -o remount,rw,bind {limits}",
        f"mount -o bind /tmp {limits}",
        f"echo x >{DRIVER}",
        f"dd if=/dev/zero of=/proc/1/root{limit} count=1",
    ):
        assert "status 0" not in shell(node, place, command), command
    program = Program(node.cluster, "one", place)
    assert program.total() == CARD // 8
    program.close()
    # nothing of the node's state but this session's own
    assert "sqlite" not in shell(node, place, "find / -name '*.sqlite'")


def test_what_reaches_the_node_is_refused_where_namespaces_are_kept_to_a_standard(node: CardNode, place: str) -> None:
    """Kubernetes' own admission; a pod with a share needs none of it and is let in at the strictest level."""
    api = node.cluster.api
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.patch("Namespace", place, {"metadata": {"labels": labels}})

    def strict() -> Object:
        content = pod("one", place, "one")
        security = content["spec"]["containers"][0]["securityContext"]
        security |= {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        return content

    host: Object = {"volumes": [{"name": "node", "hostPath": {"path": "/var/lib/gpuspawner"}}]}
    changes: list[Object] = [host, {"hostPID": True}, {"hostNetwork": True}]
    for change in changes:
        content = strict()
        content["spec"] |= change
        with pytest.raises(httpx.HTTPStatusError, match="violates PodSecurity"):
            api.create(content)
    privileged = strict()
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(httpx.HTTPStatusError, match="violates PodSecurity"):
        api.create(privileged)
    start(node, place, 1, strict())
    program = Program(node.cluster, "one", place)
    assert program.total() == CARD // 8
    program.close()
