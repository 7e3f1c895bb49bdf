"""JupyterHub with GPUKubeSpawner on a real cluster: users' servers are pods with a share of a card, whose kernels
compute while the share changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from support.cluster.cards import CardNode, card_node
from support.cluster.cluster import OwnCluster
from support.cluster.hub import cluster_stack
from support.cluster.load import Load
from support.common import until
from support.hub import Hub, Kernel, User
from support.machine import CUDA

from gpuspawner import kubernetes_names as names

#: What the driver of an 80 GB H100 reports, simulated or not.
CARD = 85_520_809_984
GIB = 1 << 30
NAMESPACE = "hub"
#: A server starts in a pod within seconds; on a machine that does much else, in a minute.
PATIENCE = 180.0


@pytest.fixture(scope="module")
def node(own_cluster: OwnCluster) -> Iterator[CardNode]:
    with card_node(own_cluster, "2*h100-80gb") as made:
        yield made


@pytest.fixture(scope="module")
def hub(node: CardNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with (
        node.cluster.namespace(NAMESPACE) as namespace,
        cluster_stack(node.cluster, namespace, tmp_path_factory.mktemp("hub")) as stack,
    ):
        yield Hub(stack)


@contextmanager
def signed_in(hub: Hub, node: CardNode, name: str) -> Iterator[User]:
    """A user; afterwards nothing is left of their server."""
    with hub.user(name) as user:
        yield user
    nothing_left(node)


def nothing_left(node: CardNode) -> None:
    """No pod, no claim, and all of both cards is offered."""
    until(lambda: not pods(node), 120, lambda: f"the pods to go: {list(pods(node))}")
    until(lambda: not claims(node), 60, lambda: f"the claims to go: {list(claims(node))}")
    until(lambda: node.published() == [8, 8], 60, lambda: f"whole cards to be offered: {node.published()}")


def pods(node: CardNode) -> dict[str, Any]:
    return {each["metadata"]["name"]: each for each in node.cluster.api.list("Pod", NAMESPACE)}


def claims(node: CardNode) -> dict[str, Any]:
    return {each["metadata"]["name"]: each for each in node.cluster.api.list("ResourceClaim", NAMESPACE)}


def resize(user: User, share: str) -> httpx.Response:
    """With the user's own token, as the panel and `%gpu` ask."""
    session = user.session()["id"]
    address = f"{user.hub.stack.url}/services/gpuspawner/api/v1/sessions/{session}"
    headers = {"Authorization": f"Bearer {user.hub.stack.token(user.name)}"}
    with user.hub.stack.service() as service:
        path = httpx.URL(address).path.partition("/api/v1")[2]
        return service.patch(path, json={"share": share}, headers=headers)


def numbers(kernel: Kernel, code: str) -> list[int]:
    return [int(word) for word in kernel(code, 120).split()]


def test_the_whole_act_in_a_pod(hub: Hub, node: CardNode) -> None:
    with signed_in(hub, node, "ann") as ann:
        session = ann.start({"share": "1/8"})
        assert (session["share"], session["state"], session["memory_bytes"]) == ("1/8", "running", CARD // 8)
        assert session["simulated"] is True
        ((_, pod),) = pods(node).items()
        assert pod["spec"]["resourceClaims"] == [{"name": "gpuspawner", "resourceClaimName": session["id"]}]
        assert pod["metadata"]["labels"][names.SESSION_LABEL] == session["id"]
        kernel = ann.kernel()
        kernel(CUDA + "kept = os.getpid()\nprint(os.environ['GPUSPAWNER_SESSION'])", 120)
        assert kernel("print(os.environ['GPUSPAWNER_SESSION'])") == f"{session['id']}\n"
        # to the limit, and not above
        assert numbers(kernel, "print(*info())")[1] == CARD // 8
        assert kernel("print(allocate(8 << 30), allocate(3 << 30))").split() == ["CUDA_SUCCESS", _OUT]
        # more, while the kernel runs
        answer = resize(ann, "1/2")
        assert answer.status_code == 200, answer.text
        assert numbers(kernel, "print(*info())")[1] == CARD // 2
        assert kernel("print(allocate(30 << 30), allocate(4 << 30))").split() == ["CUDA_SUCCESS", _OUT]
        card = next(at for at, count in enumerate(node.published()) if count != 8)
        assert node.published()[card] == 5
        assert node.used(card) > 38 * GIB
        # a shrink below what is in use changes nothing
        answer = resize(ann, "1/8")
        assert answer.status_code == 409, answer.text
        need = answer.json()["error"]["need_to_free_bytes"]
        assert need >= 38 * GIB - CARD // 8
        assert ann.session()["share"] == "1/2"
        assert numbers(kernel, "print(*info())")[1] == CARD // 2
        # back, and it is the same kernel
        kernel("free_all()")
        assert resize(ann, "1/8").status_code == 200
        free, total, same = kernel("print(*info(), kept == os.getpid())").split()
        assert (int(total), same) == (CARD // 8, "True")
        assert 0 < int(free) <= CARD // 8
        assert node.published()[card] == 8
        # from inside, as a person writes it
        said = kernel("%gpu resize 1/4\nprint(*info())", 120)
        assert int(said.split()[-1]) == CARD // 4
        ann.stop()
    assert node.used() == 0


_OUT = "CUDA_ERROR_OUT_OF_MEMORY"


def test_a_name_that_no_object_can_have(hub: Hub, node: CardNode) -> None:
    with signed_in(hub, node, "ann.smith@example.org") as ann:
        ann.start({"share": "1/2"})
        ((name, _),) = pods(node).items()
        assert name.isascii()
        assert node.cluster.api.get("ResourceClaim", ann.session()["id"], NAMESPACE)["metadata"]["annotations"][
            names.USER
        ] == ("ann.smith@example.org")
        ann.stop()


def test_a_server_without_a_card_sees_none(hub: Hub, node: CardNode) -> None:
    with signed_in(hub, node, "cpu") as user:
        user.start({"share": "none"})
        ((_, pod),) = pods(node).items()
        assert not pod["spec"].get("resourceClaims")
        assert user.kernel()("import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))") == "''\n"
        user.stop()


@pytest.fixture
def scheduler_stopped(node: CardNode) -> Iterator[Any]:
    """Stops the scheduler for a while; what it returns lets it go on."""
    scheduler = node.cluster.parts["kube-scheduler"]
    scheduler.stop()
    try:
        yield scheduler.go_on
    finally:
        scheduler.go_on()


def test_a_cancelled_start_leaves_nothing(hub: Hub, node: CardNode, scheduler_stopped: Any) -> None:
    with signed_in(hub, node, "eva") as eva:
        assert eva.ask({"share": "1"}).status_code in (201, 202)
        until(lambda: pods(node), PATIENCE, "its pod, which nobody schedules")
        eva.stop()
        until(lambda: not eva.server(), 60, "the hub to forget the server")
        scheduler_stopped()
        nothing_left(node)
        assert eva.start({"share": "1/8"})["share"] == "1/8"


def test_a_claim_that_the_node_refuses_is_placed_again(hub: Hub, node: CardNode, scheduler_stopped: Any) -> None:
    """A scheduler with a stale view puts a claim on a card that has just grown full; its user sees a server."""
    cluster = node.cluster
    with signed_in(hub, node, "kim") as kim, hub.user("liv") as liv:
        scheduler_stopped()
        session = kim.start({"share": "1/2"})
        card = session["cards"][0]["uuid"]
        cluster.parts["kube-scheduler"].stop()
        assert liv.ask({"share": "1/2"}).status_code in (201, 202)
        until(lambda: len(pods(node)) == 2, PATIENCE, "the pod of the second")
        waiting = liv.session()
        assert waiting["cards"][0]["uuid"] == card, "packed onto the card that is in use"
        # by whom the service does not know: it counts its own starts before it grows a session
        wish = {"metadata": {"annotations": {names.WANTED_EIGHTHS: "8", names.WANTED_NUMBER: "2"}}}
        cluster.api.patch("ResourceClaim", session["id"], wish, NAMESPACE)
        until(lambda: kim.session()["eighths"] == 8, 60, "the grow")
        schedule(node, waiting["id"], card)
        # refused there, so it goes to the other one, as soon as somebody schedules again
        until(lambda: liv.sessions() and liv.session()["id"] != waiting["id"], PATIENCE, "another place")
        scheduler_stopped()
        again = liv.ready()
        assert again["cards"][0]["uuid"] != card
        assert liv.kernel()(CUDA + "print(info()[1])", 120) == f"{CARD // 2}\n"
        assert kim.kernel()(CUDA + "print(info()[1])", 120) == f"{CARD}\n"
        liv.stop()
        kim.stop()


def schedule(node: CardNode, claim_name: str, card: str) -> None:
    """What a scheduler does that has not heard of the last change."""
    api = node.cluster.api
    pod = next(each for each in pods(node).values() if each["metadata"]["labels"][names.SESSION_LABEL] == claim_name)
    name = pod["metadata"]["name"]
    claim = api.get("ResourceClaim", claim_name, NAMESPACE)
    other = next(each for each in claims(node).values() if each["metadata"]["name"] != claim_name)
    result = dict(other["status"]["allocation"]["devices"]["results"][0])
    assert result["device"] == names.device_name(card)
    result["shareID"] = "11111111-2222-4333-8444-555555555555"
    claim["status"] = {
        "allocation": {**other["status"]["allocation"], "devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}],
    }
    api.replace(claim, status=True)
    target = {"apiVersion": "v1", "kind": "Node", "name": pod_node(node)}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    answer = api.http.post(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/binding", json=binding)
    assert answer.status_code == 201, answer.text


def pod_node(node: CardNode) -> str:
    return str(node.slices()[0]["spec"]["nodeName"])


@pytest.mark.parametrize("part", ["hub", "service", "proxy"])
def test_a_restart_finds_the_server_again(hub: Hub, node: CardNode, part: str) -> None:
    with signed_in(hub, node, "rob") as rob:
        session = rob.start({"share": "1/4"})
        kernel = rob.kernel()
        kernel(CUDA + "kept = 42")
        load = Load([hub.stack.service], [session["id"]])  # people change shares meanwhile
        try:
            load.go_on()
            hub.kill(part)
            load.go_on()
        finally:
            load.close()
        until(lambda: hub.answers("/hub/health"), PATIENCE, "the hub")
        until(lambda: hub.answers("/services/gpuspawner/api/v1/health"), PATIENCE, "the service")
        until(kernel.answers, PATIENCE, "the kernel behind the proxy")
        until(lambda: rob.server().get("ready"), PATIENCE, "the hub to know the server")
        assert resize(rob, "1/4").status_code == 200
        assert kernel("print(kept, info()[1])").split() == ["42", str(CARD // 4)]
        assert rob.session()["id"] == session["id"]
        assert resize(rob, "1/2").status_code == 200
        assert kernel("print(info()[1])") == f"{CARD // 2}\n"
        rob.stop()


def test_a_deleted_pod_is_a_server_that_ended(hub: Hub, node: CardNode) -> None:
    with signed_in(hub, node, "zoe") as zoe:
        first = zoe.start({"share": "1/2"})
        ((name, _),) = pods(node).items()
        node.cluster.api.delete("Pod", name, NAMESPACE, grace=0)
        until(lambda: not zoe.sessions(), 120, "the session to end")
        until(lambda: not zoe.server().get("ready"), 60, "the hub to notice")
        assert zoe.start({"share": "1/2"})["id"] != first["id"]
        zoe.stop()
