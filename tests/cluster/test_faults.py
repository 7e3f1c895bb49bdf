"""Whatever of a cluster dies while shares grow and shrink: no card is ever overcommitted, no program in a pod notices,
and afterwards what is offered is what the rule says and nothing is left without an owner."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from support.cluster.cards import CardNode, card_node, claim, pod
from support.cluster.cluster import NODE, OwnCluster
from support.cluster.hub import roles
from support.cluster.ill import IllServer, Mood, ill_server
from support.cluster.load import Load, Service, Sessions, Watch, by_the_rule
from support.common import until

#: What the driver of an 80 GB H100 reports, simulated or not.
CARD = 85_520_809_984
NAMESPACE = "faults"
USERS = ("ann", "bob", "cyd")
SERVICE, AGENT = "gpuspawner:service", "gpuspawner:agent"
PATIENCE = 120.0


@dataclass
class Ground:
    """Two cards; three sessions, which share the first; a service, and a proxy through which agent and service speak to
    the API server."""

    node: CardNode
    ill: IllServer
    service: Service
    sessions: Sessions
    ids: dict[str, str]
    watch: Watch

    @property
    def cluster(self) -> OwnCluster:
        return self.node.cluster


@pytest.fixture(scope="module")
def ground(own_cluster: OwnCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with (
        ill_server(own_cluster) as ill,
        card_node(own_cluster, "2*h100-80gb", ill.kubeconfig) as node,
        own_cluster.namespace(NAMESPACE) as namespace,
    ):
        for content in roles(namespace):
            if own_cluster.api.find(content["kind"], content["metadata"]["name"], namespace) is None:
                own_cluster.api.create(content)
        service = Service(ill.kubeconfig(SERVICE), namespace, tmp_path_factory.mktemp("service"))
        service.start()
        watch = Watch(node.state)
        try:
            sessions = Sessions(node, service, namespace)
            ids = {user: sessions.start(user, "1/8") for user in USERS}
            yield Ground(node, ill, service, sessions, ids, watch)
        finally:
            watch.close()
            service.kill()


@pytest.fixture
def load(ground: Ground) -> Iterator[Load]:
    """People who change their shares, before, while and after something happens. Afterwards all is as it should be."""
    made = Load([ground.service.client], list(ground.ids.values()))
    try:
        made.go_on()
        yield made
        made.go_on()
    finally:
        made.close()
    all_is_well(ground)


def all_is_well(ground: Ground) -> None:
    node, api = ground.node, ground.cluster.api
    until(lambda: _equal(*by_the_rule(node)), PATIENCE, lambda: f"the rule: {by_the_rule(node)}")
    wanted = set(ground.ids.values())
    until(
        lambda: {each["metadata"]["name"] for each in api.list("ResourceClaim", NAMESPACE)} == wanted,
        PATIENCE,
        "no claim without an owner",
    )
    until(
        lambda: {each["metadata"]["name"] for each in api.list("Pod", NAMESPACE)} == set(USERS),
        PATIENCE,
        "no pod without an owner",
    )
    with ground.service.client() as client:
        held = {each["id"]: each for each in client.get("/sessions").json()["sessions"]}
    assert set(held) == wanted
    for user, session in ground.ids.items():
        found = api.get("Pod", user, NAMESPACE)
        assert found["metadata"]["uid"] == ground.sessions.uids[session]
        (container,) = found["status"]["containerStatuses"]
        assert (container["restartCount"], "running" in container["state"]) == (0, True)
        # what the service says is what the program has, also where a wish was carried out after its answer was lost
        until(lambda s=session, u=user: _told(ground, s) == _total(ground, u), PATIENCE, f"the program of {user}")
    assert ground.watch.looks > 100
    assert 4 <= ground.watch.highest <= 8, "much of the card at times, and never more than there is"


def _told(ground: Ground, session: str) -> int:
    """Bytes that the service says a session has now."""
    with ground.service.client() as client:
        return int(CARD * client.get(f"/sessions/{session}").json()["eighths"] // 8)


def _total(ground: Ground, user: str) -> int | None:
    """What its program has; None where the kubelet has just started and does not pass on commands yet."""
    try:
        return ground.sessions.total(user)
    except AssertionError:
        return None


def _equal(wanted: dict[str, int], offered: dict[str, int]) -> bool:
    return bool(offered) and wanted == offered


@pytest.mark.parametrize(
    "name", ["agent", "kubelet", "kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager"]
)
def test_a_part_of_the_cluster_is_killed(ground: Ground, load: Load, name: str) -> None:
    part = ground.node.agent if name == "agent" else ground.cluster.parts[name]
    part.kill()
    part.start()
    part.wait()
    until(ground.cluster.api.ready, PATIENCE, "the API server")


def test_the_service_is_killed(ground: Ground, load: Load) -> None:
    ground.service.kill()
    ground.service.start()


def test_the_agent_is_replaced(ground: Ground, load: Load) -> None:
    """As an upgrade does: it is asked to end, and another one is started."""
    for _ in range(2):
        ground.node.agent.restart(signal.SIGTERM)
        load.go_on(3)


def test_slices_are_deleted_by_hand(ground: Ground, load: Load) -> None:
    for _ in range(5):
        for each in ground.node.slices():
            ground.cluster.api.delete("ResourceSlice", each["metadata"]["name"])
        until(ground.node.slices, PATIENCE, "the slice to come back")
    load.go_on()


@pytest.mark.parametrize("mood", ["slow", "busy", "broken"])
def test_the_api_server_is(ground: Ground, load: Load, mood: Mood) -> None:
    ground.ill.mood = mood
    try:
        heard = sum(load.answers.values())
        until(lambda: ground.ill.said[mood] >= 10, PATIENCE, "requests that it makes wait or refuses")
        # granted or refused in words: a change takes four requests one after the other, and people wait for 10 s
        until(lambda: sum(load.answers.values()) >= heard + 3, PATIENCE, lambda: f"answers: {dict(load.answers)}")
    finally:
        ground.ill.mood = "well"


def test_two_services_by_mistake(ground: Ground, load: Load, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = Service(ground.ill.kubeconfig(SERVICE), NAMESPACE, tmp_path_factory.mktemp("other"))
    other.start()
    try:
        more = Load([other.client], list(ground.ids.values()), seed=100)
        try:
            more.go_on(10)
            load.go_on(10)
        finally:
            more.close()
    finally:
        other.kill()


def test_a_claim_that_is_never_scheduled(ground: Ground, load: Load) -> None:
    """A stranger's, for a card that is in use; ours go on, and it takes nothing."""
    api = ground.cluster.api
    uuid = next(each for each in ground.node.devices())["attributes"]["gpu.gpuspawner.io/uuid"]["string"]
    with ground.cluster.namespace("stranger") as namespace:
        api.create(claim("greedy", namespace, 8, uuid))
        api.create(pod("greedy", namespace, "greedy"))

        def waits() -> bool:
            conditions = api.get("Pod", "greedy", namespace)["status"].get("conditions") or []
            return any(each.get("reason") == "Unschedulable" for each in conditions)

        until(waits, PATIENCE, "the scheduler to find no place")
        load.go_on()
        assert not api.get("ResourceClaim", "greedy", namespace).get("status", {}).get("allocation")


def test_a_pod_is_deleted_by_force(ground: Ground, load: Load) -> None:
    """While its program still runs. Its session ends; its eighths come back when the driver shows nothing of it."""
    session = ground.sessions.start("dan", "1/8", run=False)
    until(lambda: ground.cluster.api.find("Pod", "dan", NAMESPACE), PATIENCE)
    until(lambda: ground.sessions.said("dan") == "ready", PATIENCE, "its program")
    ground.cluster.api.delete("Pod", "dan", NAMESPACE, grace=0)
    ground.sessions.uids.pop(session)

    def over() -> bool:
        with ground.service.client() as client:
            return bool(client.get(f"/sessions/{session}").json()["state"] == "ended")

    until(over, PATIENCE, "its session to end")


def test_no_room_on_the_disk_for_what_the_runtime_reads(ground: Ground, load: Load) -> None:
    """A start waits in words, and goes on when there is room; what runs does not notice."""
    host, folder = ground.cluster.host, ground.node.cdi
    host.run("mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=1", "tmpfs", folder)
    try:
        session = ground.sessions.start("eve", "1/8", run=False)

        def said() -> str:
            events = ground.cluster.api.list("Event", NAMESPACE)
            return " ".join(
                each["message"] for each in events if each["involvedObject"]["name"] == "eve" and each.get("message")
            )

        until(lambda: "No space left" in said(), PATIENCE, lambda: f"the kubelet to say why: {said()}")
        load.go_on()
    finally:
        host.run("umount", folder)
    until(lambda: ground.sessions.said("eve") == "ready", 200, "its program")
    ground.sessions.end(session, "eve")


def test_a_node_is_not_ready(ground: Ground, load: Load) -> None:
    """Its kubelet is stuck. Shares of what runs change all the same; nothing new is placed there."""
    kubelet = ground.cluster.parts["kubelet"]
    kubelet.stop()
    try:
        until(lambda: not _ready(ground), PATIENCE, "the node to be not ready")
        load.go_on()
        with ground.service.client() as client:
            until(lambda: not _free(client.get("/offers").json()), 30, "nothing to be offered")
            assert client.post("/sessions", json={"user": "fay", "share": "1/8"}).status_code == 409
    finally:
        kubelet.go_on()
    until(lambda: _ready(ground), PATIENCE, "the node to be ready")


def _ready(ground: Ground) -> bool:
    conditions = ground.cluster.api.get("Node", NODE)["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _free(offers: dict[str, list[dict[str, object]]]) -> bool:
    return any(each["available"] for each in offers["offers"])
