"""Shares on a real cluster: the stock scheduler places them, a real kubelet prepares them, a running process keeps to
them while they change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.cluster.cards import CardNode, Program, card_node, claim, pod, status, wait_running
from support.cluster.cluster import OwnCluster
from support.common import until

from gpuspawner import kubernetes_names as names

#: What the driver of an 80 GB H100 reports, simulated or not.
CARD = 85_520_809_984
GIB = 1 << 30


@pytest.fixture(scope="module")
def node(own_cluster: OwnCluster) -> Iterator[CardNode]:
    with card_node(own_cluster, "2*h100-80gb") as made:
        yield made


class Session:
    """A claim, its pod and a program in it."""

    def __init__(self, node: CardNode, namespace: str, name: str, eighths: int, card: int = 0) -> None:
        self.node, self.cluster, self.namespace, self.name = node, node.cluster, namespace, name
        self._number = 0
        uuid = node.devices()[card]["attributes"]["gpu.gpuspawner.io/uuid"]["string"]
        self.cluster.api.create(claim(name, namespace, eighths, uuid))
        self.cluster.api.create(pod(name, namespace, name))

    def run(self) -> Program:
        wait_running(self.cluster, self.name, self.namespace)
        return Program(self.cluster, self.name, self.namespace)

    def wish(self, eighths: int, **more: str) -> None:
        """As the service does it: eighths and number together."""
        self._number += 1
        wanted = {names.WANTED_EIGHTHS: str(eighths), names.WANTED_NUMBER: str(self._number), **more}
        self.cluster.api.patch("ResourceClaim", self.name, {"metadata": {"annotations": wanted}}, self.namespace)

    def status(self) -> dict[str, Any]:
        return status(self.cluster, self.name, self.namespace)

    def answered(self) -> dict[str, Any]:
        """The status once the last wish was answered."""
        until(lambda: self.status().get("request") == self._number, 60, lambda: f"an answer: {self.status()}")
        return self.status()

    def end(self) -> None:
        self.cluster.api.delete("Pod", self.name, self.namespace, grace=0)
        until(lambda: self.cluster.api.find("Pod", self.name, self.namespace) is None, 60, "the pod to go")
        self.cluster.api.delete("ResourceClaim", self.name, self.namespace)


@pytest.fixture
def sessions(node: CardNode, namespace: str) -> Iterator[Any]:
    """Makes sessions; afterwards all of the cards is offered again."""
    yield lambda name, eighths, card=0: Session(node, namespace, name, eighths, card)
    for each in node.cluster.api.list("Pod", namespace):
        node.cluster.api.delete("Pod", each["metadata"]["name"], namespace, grace=0)
    for each in node.cluster.api.list("ResourceClaim", namespace):
        node.cluster.api.delete("ResourceClaim", each["metadata"]["name"], namespace)
    until(lambda: node.published() == [8, 8], 90, lambda: f"whole cards to be offered: {node.published()}")


def test_the_cards_are_published_with_what_is_known_of_them(node: CardNode) -> None:
    device = node.devices()[0]
    said = {name.removeprefix("gpu.gpuspawner.io/"): value for name, value in device["attributes"].items()}
    assert device["name"] == names.device_name(said["uuid"]["string"])
    assert said["model"] == {"string": "h100-80gb"}
    assert said["vendor"] == {"string": "nvidia"}
    assert said["generation"] == {"string": "hopper"}
    assert said["memoryBytes"] == {"int": CARD}
    assert said["simulated"] == {"bool": True}
    assert said["grade"] == {"string": "guarded"}
    assert device["allowMultipleAllocations"] is True
    policy = {"default": "1", "validValues": ["1", "2", "4", "8"]}
    assert device["capacity"] == {"eighths": {"value": "8", "requestPolicy": policy}}


def test_a_pod_with_two_eighths_sees_them_and_no_more(node: CardNode, sessions: Any) -> None:
    session = sessions("quarter", 2)
    program = session.run()
    assert program.total() == CARD // 4
    assert program.allocate(CARD // 4) == 2  # out of memory: the context takes some of it
    assert program.allocate(15 * GIB) == 0
    until(lambda: node.used() > 15 * GIB, 30, "the device to see it")
    said = session.status()
    assert (said["eighths"], said["memoryBytes"], said["simulated"], said["grade"]) == (2, CARD // 4, True, "guarded")
    assert said["Ready"][:2] == ("True", "InForce")
    program.close()


def test_a_resize_is_in_force_in_the_running_process(node: CardNode, sessions: Any) -> None:
    session = sessions("grows", 2)
    program = session.run()
    session.wish(4)
    assert session.answered()["Resized"][:2] == ("True", "InForce")
    assert program.total() == CARD // 2
    assert node.published()[0] == 6  # the scheduler still thinks of two eighths
    assert program.allocate(30 * GIB) == 0
    session.wish(1)
    said = session.answered()
    assert said["Resized"][:2] == ("False", "InUse")
    assert said["needToFreeBytes"] >= 30 * GIB - CARD // 8  # the context takes some too
    assert str(said["needToFreeBytes"]) in said["Resized"][2]
    assert program.total() == CARD // 2
    assert program("free") == "0"
    session.wish(1)
    assert session.answered()["Resized"][:2] == ("True", "InForce")
    assert program.total() == CARD // 8
    assert node.published()[0] == 9
    program.close()


def test_the_scheduler_counts_with_what_is_in_force(node: CardNode, sessions: Any) -> None:
    first = sessions("first", 2)
    first.run().close()
    first.wish(8)
    first.answered()
    assert node.published()[0] == 2
    second = sessions("second", 1)
    until(lambda: _waits(second), 60, "the pod to be unschedulable")
    first.wish(4)
    first.answered()
    second.run().close()
    first.wish(8)
    said = first.answered()
    assert said["Resized"][:2] == ("False", "NoRoom")
    assert said["eighths"] == 4
    assert node.published()[0] == 6


def _waits(session: Session) -> bool:
    conditions = session.cluster.api.get("Pod", session.name, session.namespace)["status"].get("conditions") or []
    return any(each.get("reason") == "Unschedulable" for each in conditions)


def test_a_forced_shrink_is_charged_until_it_is_unused(node: CardNode, sessions: Any) -> None:
    session = sessions("forced", 4)
    program = session.run()
    assert program.allocate(30 * GIB) == 0
    session.wish(1, **{names.WANTED_FORCED: "true"})
    said = session.answered()
    assert (said["eighths"], said["Resized"][:2]) == (1, ("True", "InForce"))
    assert program.allocate(GIB) == 2
    assert node.published()[0] == 8
    assert program("free") == "0"
    until(lambda: node.published()[0] == 11, 30, lambda: f"what is unused to be offered: {node.published()}")
    program.close()


def test_a_wish_that_was_answered_is_not_looked_at_again(node: CardNode, sessions: Any) -> None:
    session = sessions("late", 2)
    session.run().close()
    session.wish(4)
    session.answered()
    wanted = {names.WANTED_EIGHTHS: "1"}  # a late write, without a new number
    node.cluster.api.patch("ResourceClaim", session.name, {"metadata": {"annotations": wanted}}, session.namespace)
    session.wish(8)  # when this is answered, the other was seen
    assert session.answered()["eighths"] == 8


def test_a_wish_that_cannot_be_read_says_why(node: CardNode, sessions: Any) -> None:
    session = sessions("odd", 2)
    session.run().close()
    session.wish(3)
    said = session.answered()
    assert said["Resized"][:2] == ("False", "Invalid")
    assert "'3'" in said["Resized"][2]
    assert said["eighths"] == 2


def test_an_ended_pod_gives_its_share_back(node: CardNode, sessions: Any) -> None:
    session = sessions("gone", 8)
    program = session.run()
    assert program.allocate(60 * GIB) == 0
    session.end()
    program.close()
    until(lambda: node.used() == 0, 30, "its memory to be free")
    again = sessions("again", 8)
    program = again.run()
    assert program.total() == CARD
    program.close()


def test_the_limit_is_not_the_containers_to_write(node: CardNode, sessions: Any) -> None:
    session = sessions("hostile", 1)
    session.run().close()
    cluster, place = node.cluster, ["--namespace", session.namespace, "exec", "hostile", "--"]
    for path in ("/run/gpuspawner/limits/limit", "/run/gpuspawner/driver/libcuda.so.1", "/usr/lib64/libcuda.so.1"):
        with pytest.raises(AssertionError, match=r"Read-only|Permission denied"):
            cluster.kubectl(*place, "sh", "-c", f"echo x > {path}")


def test_the_agent_is_killed_and_comes_back(node: CardNode, sessions: Any) -> None:
    session = sessions("survives", 2)
    program = session.run()
    session.wish(4)
    session.answered()
    node.agent.kill()
    assert program.total() == CARD // 2  # nobody needs it to go on
    session.wish(8)
    node.agent.start()
    node.agent.wait()
    assert session.answered()["eighths"] == 8
    assert program.total() == CARD
    assert node.published()[0] == 2
    program.close()


def test_a_pod_that_ended_while_the_agent_was_away(node: CardNode, sessions: Any) -> None:
    session = sessions("unseen", 4)
    session.run().close()
    node.agent.kill()
    node.cluster.api.delete("Pod", "unseen", session.namespace, grace=0)
    node.agent.start()
    node.agent.wait()
    until(lambda: node.published()[0] == 8, 90, lambda: f"its share to be offered: {node.published()}")


def test_the_kubelet_is_killed_and_comes_back(node: CardNode, sessions: Any) -> None:
    session = sessions("stays", 2)
    program = session.run()
    session.wish(4)
    session.answered()
    program.close()  # what kubectl speaks to it through is the kubelet
    node.cluster.parts["kubelet"].restart()
    until(lambda: node.published() == [6, 8], 60, "the slice that a starting kubelet deletes")
    other = sessions("later", 2)
    after = other.run()
    assert after.total() == CARD // 4
    after.close()
    again = session.run()
    assert again.total() == CARD // 2
    again.close()
    (container,) = node.cluster.api.get("Pod", session.name, session.namespace)["status"]["containerStatuses"]
    assert container["restartCount"] == 0


def test_a_slice_deleted_by_hand_comes_back(node: CardNode) -> None:
    before = node.slices()[0]["metadata"]
    node.cluster.api.delete("ResourceSlice", before["name"])
    until(lambda: (found := node.slices()) and found[0]["metadata"]["uid"] != before["uid"], 30, "the slice to be back")
    assert node.published() == [8, 8]


def test_a_failed_card_gets_no_new_shares(node: CardNode, sessions: Any) -> None:
    node.control("xid 1 48")
    until(lambda: "taints" in node.devices()[1], 30, "the taint")
    taint = node.devices()[1]["taints"][0]
    assert (taint["key"], taint["value"], taint["effect"]) == (names.HEALTH_TAINT, "failed", "NoSchedule")
    assert "taints" not in node.devices()[0]
    session = sessions("healthy", 8, 1)
    until(lambda: _waits(session), 60, "the pod to be unschedulable")
