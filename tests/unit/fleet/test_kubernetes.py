"""A cluster as a fleet, over an API server in memory that can be made slow, busy and forgetful."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.common import until
from support.fake_cluster import CLAIMS, PODS, SLICES, Answering, FakeCluster, uuid

from gpuspawner import kubernetes_names as names
from gpuspawner.errors import Conflict, InUse, NoRoom, NotFound, Unavailable
from gpuspawner.fleet.base import PodLaunch
from gpuspawner.fleet.cleaning import Cleaner
from gpuspawner.fleet.kubernetes import KubernetesFleet
from gpuspawner.kubernetes_api import ApiError
from gpuspawner.service.database import open_database
from gpuspawner.service.sessions import SessionService
from gpuspawner.service.store import Store
from gpuspawner.service.tariff import Tariff
from gpuspawner.share import GPUShare


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    made = FakeCluster()
    made.node("n1")
    yield made
    made.close()


@pytest.fixture
def fleet(cluster: FakeCluster) -> Iterator[KubernetesFleet]:
    made = cluster.fleet(answer_seconds=5)
    yield made
    made.close()


def free(fleet: KubernetesFleet) -> dict[str, int]:
    return {state.card.uuid: state.free_eighths for state in fleet.cards()}


def start(fleet: KubernetesFleet, session: str, share: str = "1/4", **more: Any) -> PodLaunch:
    return fleet.start(session, "ann", GPUShare.parse(share), **more)[1]


def running(cluster: FakeCluster, fleet: KubernetesFleet, session: str, share: str = "1/4") -> None:
    """A session whose pod runs, as all see it."""
    launch = start(fleet, session, share)
    cluster.allocate(session)
    cluster.pod(f"jupyter-{session}", launch)
    cluster.answer(session, GPUShare.parse(share).eighths_per_card, 1)
    until(lambda: fleet.alive(session))
    until(lambda: (held := fleet._inventory.held(session)) and held.claim and held.claim.answer)


# -- what is free -----------------------------------------------------------------------------------------


def test_cards_are_what_the_slices_say(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    first = fleet.cards()[0]
    assert (first.card.uuid, first.card.model, first.card.simulated) == (uuid("n1", 0), "h100-80gb", True)
    assert (first.node, first.grade, first.resize, first.health.state) == ("n1", "guarded", "live", "ok")
    assert fleet.cards([uuid("n1", 1), "GPU-nobody"])[0].card.index == 1
    cluster.node("n2", 1)
    until(lambda: len(fleet.cards()) == 3)
    cluster.vanish(f"{SLICES}/n1")
    until(lambda: free(fleet) == {uuid("n2", 0): 8})


def test_what_others_claim_and_what_was_resized_counts(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    foreign = "/apis/resource.k8s.io/v1/namespaces/elsewhere/resourceclaims"
    result = {
        "driver": names.DRIVER,
        "request": "any",
        "pool": "n1",
        "device": names.device_name(uuid("n1", 0)),
        "shareID": "x",
        "consumedCapacity": {"eighths": "4"},
    }
    cluster.put(f"{foreign}/theirs", {"spec": {}, "status": {"allocation": {"devices": {"results": [result]}}}})
    until(lambda: free(fleet)[uuid("n1", 0)] == 4)
    cluster.publish("n1", 0, 6)  # one of them has grown by two eighths
    until(lambda: free(fleet)[uuid("n1", 0)] == 2)
    cluster.vanish(f"{foreign}/theirs")
    cluster.publish("n1", 0, 8)
    until(lambda: free(fleet)[uuid("n1", 0)] == 8)


def test_what_is_tainted_or_on_a_node_that_is_away_is_not_offered(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    cluster.publish("n1", 0, 8, taint="xid-79")
    until(lambda: free(fleet)[uuid("n1", 0)] == 0)
    assert "xid-79" in (fleet.cards()[0].health.reason or "")
    cluster.publish("n1", 0, 8)
    cluster.condition("n1", cordoned=True)
    until(lambda: set(free(fleet).values()) == {0})
    assert fleet.cards()[0].health.state == "warning"
    cluster.condition("n1", ready="Unknown")
    until(lambda: fleet.cards()[0].health.state == "failed")
    with pytest.raises(NoRoom, match="n1 does not answer"):
        start(fleet, "s-1")
    cluster.condition("n1")
    until(lambda: set(free(fleet).values()) == {8})


# -- starts -----------------------------------------------------------------------------------------------


def test_a_start_is_a_claim_for_the_card_that_was_chosen(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    grant, launch = fleet.start("s-1", "ann@x", GPUShare(2), burst=True, server="two")
    claim = cluster.get(f"{CLAIMS}/s-1")
    assert claim
    exactly = claim["spec"]["devices"]["requests"][0]["exactly"]
    assert exactly["selectors"][0]["cel"]["expression"] == (
        f'device.attributes["gpu.gpuspawner.io"].uuid in ["{grant.cards[0].uuid}"]'
    )
    assert exactly["capacity"]["requests"] == {"eighths": "2"}
    notes = claim["metadata"]["annotations"]
    assert (notes[names.WANTED_EIGHTHS], notes[names.WANTED_NUMBER], notes[names.WANTED_BURST]) == ("2", "1", "true")
    assert (launch.namespace, launch.claim) == ("hub", "s-1")
    assert launch.labels[names.USER_LABEL] == "ann-x"
    assert launch.annotations == {names.USER: "ann@x", names.SERVER: "two", names.SHARE: "1/4"}
    assert grant.owner == ("ann@x", "two", GPUShare(2))


def test_starts_under_way_count_at_once(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(lambda n: start(fleet, f"s-{n}", "1/2"), range(4)))
    assert len(started) == 4
    assert free(fleet) == {uuid("n1", 0): 0, uuid("n1", 1): 0}
    with pytest.raises(NoRoom):
        start(fleet, "s-5", "1/8")
    assert set(cluster.under(CLAIMS)) == {"s-0", "s-1", "s-2", "s-3"}
    for n in range(4):
        cluster.allocate(f"s-{n}")
    until(lambda: all(held.claim and held.claim.allocated for held in fleet._inventory.all_held()))
    assert set(free(fleet).values()) == {0}


def test_several_cards_are_of_one_node_and_where_it_goes_of_one_island(cluster: FakeCluster) -> None:
    cluster.node("n2", 4, nvlinkIsland=[0, 1, 0, 1])
    fleet = cluster.fleet()
    try:
        grant, _ = fleet.start("s-1", "ann", GPUShare(16))
        assert {card.uuid for card in grant.cards} in ({uuid("n2", 0), uuid("n2", 2)}, {uuid("n2", 1), uuid("n2", 3)})
        assert cluster.under(CLAIMS)["s-1"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 2
        with pytest.raises(NoRoom, match="only 4 such cards in one node"):
            fleet.start("s-2", "ann", GPUShare(40))
    finally:
        fleet.close()


def test_a_claim_that_cannot_be_made_leaves_nothing(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    with cluster.faulty(lambda method, path: 500 if method == "POST" else None), pytest.raises(Unavailable):
        start(fleet, "s-1")
    until(lambda: set(free(fleet).values()) == {8})
    assert fleet.grant("s-1") is None


def test_a_session_without_a_card_is_its_pod(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    launch = start(fleet, "s-1", "none")
    assert launch.claim is None
    assert cluster.under(CLAIMS) == {}
    assert fleet.grant("s-1") is not None  # its pod is on the way
    assert not fleet.alive("s-1")
    cluster.pod("jupyter-ann", launch)
    until(lambda: fleet.alive("s-1"))
    assert [grant.session for grant in fleet.grants()] == ["s-1"]
    assert fleet.end("s-1", "asked")
    assert cluster.under(PODS) == {}
    assert fleet.grants() == []


# -- changes ----------------------------------------------------------------------------------------------


def test_a_resize_is_a_wish_and_its_answer(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    running(cluster, fleet, "s-1")
    with Answering(cluster):
        fleet.resize("s-1", 4)
        grant = fleet.grant("s-1")
        assert grant
        assert grant.eighths_per_card == 4
        fleet.resize("s-1", 1)
        fleet.set_burst("s-1", True)
    notes = cluster.under(CLAIMS)["s-1"]["metadata"]["annotations"]
    assert (notes[names.WANTED_EIGHTHS], notes[names.WANTED_NUMBER], notes[names.WANTED_BURST]) == ("1", "4", "true")
    grant = fleet.grant("s-1")
    assert grant
    assert (grant.eighths_per_card, grant.burst) == (1, True)


def in_background(what: Any) -> tuple[threading.Thread, list[BaseException | None]]:
    came: list[BaseException | None] = []

    def do() -> None:
        try:
            what()
            came.append(None)
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    return thread, came


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (names.REASON_NO_ROOM, NoRoom),
        (names.REASON_IN_USE, InUse),
        (names.REASON_NOT_RESIZABLE, Conflict),
        (names.REASON_ENDED, NotFound),
        (names.REASON_UNAVAILABLE, Unavailable),
    ],
)
def test_a_refusal_of_the_node_is_told(
    cluster: FakeCluster, fleet: KubernetesFleet, reason: str, error: type[Exception]
) -> None:
    running(cluster, fleet, "s-1")
    thread, came = in_background(lambda: fleet.resize("s-1", 1))
    until(lambda: cluster.under(CLAIMS)["s-1"]["metadata"]["annotations"][names.WANTED_NUMBER] == "2")
    cluster.answer("s-1", 2, 2, reason, **{names.DATA_NEED_TO_FREE: 5})
    thread.join(10)
    assert type(came[0]) is error
    assert "because of" in str(came[0]) or error is NotFound
    if isinstance(came[0], InUse):
        assert came[0].extra["need_to_free_bytes"] == 5


def test_a_grow_leaves_room_for_a_start_under_way(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    running(cluster, fleet, "s-1", "1/2")
    start(fleet, "s-2", "1/4", card=fleet.grants()[0].cards[0].uuid)
    with pytest.raises(NoRoom, match="3/4") as refused:
        fleet.resize("s-1", 8)
    assert refused.value.extra["free_eighths"] == 6
    assert cluster.under(CLAIMS)["s-1"]["metadata"]["annotations"][names.WANTED_NUMBER] == "1"


def test_a_node_that_does_not_answer_is_asked_no_more(cluster: FakeCluster) -> None:
    fleet = cluster.fleet(answer_seconds=0.3)
    try:
        running(cluster, fleet, "s-1")
        with pytest.raises(Unavailable, match="stays as it is"):
            fleet.resize("s-1", 4)
        notes = cluster.under(CLAIMS)["s-1"]["metadata"]["annotations"]
        assert (notes[names.WANTED_EIGHTHS], notes[names.WANTED_NUMBER]) == ("2", "3")
    finally:
        fleet.close()


def test_two_services_never_use_one_number_twice(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    running(cluster, fleet, "s-1", "1/8")
    other = cluster.fleet(answer_seconds=5)
    numbers: list[int] = []

    def note(method: str, path: str) -> None:
        if method == "PATCH":
            numbers.append(int(cluster.under(CLAIMS)["s-1"]["metadata"]["annotations"][names.WANTED_NUMBER]))

    def resize(which: KubernetesFleet, eighths: int) -> None:
        with contextlib.suppress(Conflict):  # the other one was faster
            which.resize("s-1", eighths)

    try:
        with Answering(cluster), cluster.faulty(note), ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: resize((fleet, other)[n % 2], (1, 2, 4)[n % 3]), range(24)))
        history = [each[3] for each in cluster.history if each[1] == f"{CLAIMS}/s-1"]
        wishes: dict[int, str] = {}
        for claim in history:
            notes = claim["metadata"]["annotations"]
            number = int(notes[names.WANTED_NUMBER])
            assert wishes.setdefault(number, notes[names.WANTED_EIGHTHS]) == notes[names.WANTED_EIGHTHS]
        assert len(wishes) > 10
    finally:
        other.close()


# -- ends -------------------------------------------------------------------------------------------------


def test_an_end_deletes_pod_and_claim_and_says_when_they_are_gone(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    running(cluster, fleet, "s-1")
    assert not fleet.end("s-1", "asked")  # something keeps the claim
    assert cluster.under(PODS) == {}
    grant = fleet.grant("s-1")
    assert grant
    assert grant.ended
    assert fleet.end("s-1", "asked again") is False
    cluster.let_go("s-1")
    until(lambda: any(change.what == "freed" for change in fleet.watch()))
    assert fleet.grants() == []
    assert fleet.end("s-1", "once more")


def test_an_end_while_the_api_server_is_down_happens_later(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    running(cluster, fleet, "s-1")
    with cluster.faulty(lambda method, path: 503):
        assert not fleet.end("s-1", "asked")
    until(
        lambda: "s-1" not in cluster.under(PODS) and cluster.under(CLAIMS)["s-1"]["metadata"].get("deletionTimestamp")
    )


def test_another_pod_of_the_same_name_is_left_alone(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    running(cluster, fleet, "s-1")
    with cluster.faulty(lambda method, path: 0.0 if "watch" in path else None):
        held = fleet._inventory.held("s-1")
        assert held
        assert held.pod
        cluster.vanish(f"{PODS}/jupyter-s-1")
        cluster.put(f"{PODS}/jupyter-s-1", {"metadata": {"labels": {"somebody": "else"}}})
        fleet._ask(fleet._cleaner._delete_pod(held.pod))
    assert cluster.under(PODS)["jupyter-s-1"]["metadata"]["labels"] == {"somebody": "else"}


def ended(fleet: KubernetesFleet, session: str) -> str:
    """Why a session ended by itself."""
    found: list[str] = []

    def look() -> bool:
        found.extend(change.reason for change in fleet.watch() if change.what == "ended" and change.session == session)
        return bool(found)

    until(look)
    return found[0]


def test_a_claim_that_has_forgotten_its_pod_ends_with_it(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    """A pod that was deleted by force: its claim is deallocated in the same moment, as if none had ever been there."""
    running(cluster, fleet, "s-1")
    cluster.let_go("s-1")
    cluster.vanish(f"{PODS}/jupyter-s-1")
    assert ended(fleet, "s-1") == "its pod is gone"


def test_a_session_ends_with_its_pod(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    running(cluster, fleet, "s-1")
    running(cluster, fleet, "s-2")
    cluster.vanish(f"{PODS}/jupyter-s-1")
    assert ended(fleet, "s-1") == "its pod is gone"

    def evict(pod: dict[str, Any]) -> None:
        pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}

    cluster.change(f"{PODS}/jupyter-s-2", evict)
    assert ended(fleet, "s-2") == "its pod has ended: Evicted The node was low on memory."
    until(lambda: all(each["metadata"].get("deletionTimestamp") for each in cluster.under(CLAIMS).values()))


def test_a_refused_claim_is_to_be_placed_again_and_elsewhere(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    launch = start(fleet, "s-1")
    cluster.allocate("s-1")
    cluster.pod("jupyter-ann", launch, phase="Pending")
    refused = fleet.grants()[0].cards[0].uuid
    cluster.refuse("s-1")
    assert ended(fleet, "s-1") == f"{names.PLACE_AGAIN}: Others were faster."
    until(lambda: cluster.under(PODS) == {})
    grant, _ = fleet.start("s-2", "ann", GPUShare(2))
    assert grant.cards[0].uuid != refused


def test_pods_of_strangers_whose_claim_was_refused_are_deleted(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    launch = start(fleet, "s-1")
    theirs = cluster.under(CLAIMS)["s-1"]
    fleet.end("s-1", "only to look at it")
    there = "/apis/resource.k8s.io/v1/namespaces/elsewhere"
    del theirs["metadata"]["labels"]
    cluster.put(f"{there}/resourceclaims/theirs", theirs)
    cluster.allocate("theirs", at=f"{there}/resourceclaims")
    pod = cluster.put("/api/v1/namespaces/elsewhere/pods/batch", {"metadata": {}})
    other = cluster.put("/api/v1/namespaces/elsewhere/pods/other", {"metadata": {}})
    cluster.reserve("theirs", "batch", pod["metadata"]["uid"], at=f"{there}/resourceclaims")
    cluster.refuse("theirs", at=f"{there}/resourceclaims")
    until(lambda: set(cluster.under("/api/v1/namespaces/elsewhere/pods")) == {"other"})
    assert other
    assert launch
    assert "theirs" in cluster.under(f"{there}/resourceclaims")


def test_a_pod_without_a_place_and_a_session_without_a_pod_end(cluster: FakeCluster) -> None:
    def hurried(*args: Any) -> Cleaner:
        return Cleaner(*args, start_seconds=0.5, unschedulable_seconds=0.5)

    fleet = cluster.fleet(cleaner=hurried)
    try:
        launch = start(fleet, "s-1")
        pod = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}
        pod["lastTransitionTime"] = "2020-01-01T00:00:00Z"
        meta = {"labels": dict(launch.labels), "annotations": dict(launch.annotations)}
        cluster.put(f"{PODS}/jupyter-ann", {"metadata": meta, "status": {"phase": "Pending", "conditions": [pod]}})
        assert ended(fleet, "s-1") == f"{names.PLACE_AGAIN}: the pod cannot run where its card is (Insufficient cpu)"
        start(fleet, "s-2")
        assert "no pod was started" in ended(fleet, "s-2")
        until(lambda: cluster.under(CLAIMS) == {} and cluster.under(PODS) == {})
    finally:
        fleet.close()


def test_a_pod_whose_claim_is_gone_is_deleted_and_others_are_not(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    running(cluster, fleet, "s-1")
    running(cluster, fleet, "s-2")
    cluster.vanish(f"{CLAIMS}/s-1")
    assert ended(fleet, "s-1") == "its claim is gone"
    until(lambda: set(cluster.under(PODS)) == {"jupyter-s-2"})


def test_another_installation_in_the_namespace_is_left_alone(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    running(cluster, fleet, "s-1")
    other = cluster.fleet("two")
    try:
        until(lambda: sum(free(other).values()) == 14)
        assert other.grants() == []
        cluster.vanish(f"{PODS}/jupyter-s-1")
        assert ended(fleet, "s-1") == "its pod is gone"
        assert other.watch() == []
    finally:
        other.close()


# -- faults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut", "410", "429", "slow"])
def test_what_happens_during_a_fault_is_seen_afterwards(
    cluster: FakeCluster, fleet: KubernetesFleet, fault: str
) -> None:
    def trouble(method: str, path: str) -> int | float | None:
        if fault == "429" and method == "GET":
            return 429
        return 0.5 if fault == "slow" else None

    with cluster.faulty(trouble):
        if fault == "410":
            cluster.publish("n1", 0, 8)
            cluster.forget_history()
        else:
            cluster.cut_watches()
        cluster.vanish(f"{SLICES}/n1")
        cluster.node("n2", 3)
    until(lambda: free(fleet) == {uuid("n2", index): 8 for index in range(3)})
    running(cluster, fleet, "s-1")
    with Answering(cluster):
        fleet.resize("s-1", 8)


def test_a_silent_connection_is_noticed(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuspawner.fleet.mirror.SILENCE_SECONDS", 0.2)
    fleet = cluster.fleet()
    try:
        watches = sum(path == SLICES for _, path in cluster.requests)
        until(lambda: sum(path == SLICES for _, path in cluster.requests) > watches + 1)
        cluster.node("n2", 1)
        until(lambda: len(fleet.cards()) == 3)
    finally:
        fleet.close()


def test_an_object_that_nobody_understands_stops_nothing(cluster: FakeCluster, fleet: KubernetesFleet) -> None:
    cluster.put(f"{SLICES}/odd", {"spec": {"driver": names.DRIVER, "devices": "none"}})
    cluster.node("n2", 1)
    until(lambda: len(fleet.cards()) == 3)


def test_a_cluster_that_does_not_answer_is_said(cluster: FakeCluster) -> None:
    with cluster.faulty(lambda method, path: 403), pytest.raises(Unavailable, match="could not be listed"):
        KubernetesFleet(cluster.connect, "hub", "one", sync_seconds=0.5)


# -- the service over it ----------------------------------------------------------------------------------


@pytest.fixture
def service(fleet: KubernetesFleet, tmp_path: Path) -> Callable[[], SessionService]:
    """Makes services that know nothing yet."""
    numbers = itertools.count()
    return lambda: SessionService(fleet, Store(open_database(f"sqlite:///{tmp_path}/{next(numbers)}.sqlite"), Tariff()))


def test_a_service_that_lost_its_records_takes_over_what_runs(
    cluster: FakeCluster, fleet: KubernetesFleet, service: Callable[[], SessionService]
) -> None:
    with Answering(cluster):
        first = service()
        row, launch, _ = first.start("ann", "two", GPUShare(2), "hub")
        assert isinstance(launch, PodLaunch)
        until(lambda: (claim := cluster.get(f"{CLAIMS}/{row.id}")) and claim.get("status"))
        cluster.pod("jupyter-ann", launch)
        until(
            lambda: fleet.alive(row.id) and (held := fleet._inventory.held(row.id)) and held.claim and held.claim.answer
        )
        first.resize(row.id, GPUShare(4), "ann")
        second = service()
        (found,) = second.store.sessions(states=("starting", "running"))
    assert (found.id, found.user, found.server, found.share) == (row.id, "ann", "two", "1/2")
    assert set(cluster.under(PODS)) == {"jupyter-ann"}
    kinds = [(entry.kind, entry.eighths, entry.reason) for entry in second.store.ledger(row.id)]
    assert kinds == [("resize", 4, "found in force"), ("start", 2, "found running")]


def test_a_claim_that_a_pod_has_used_is_not_used_again(
    cluster: FakeCluster, fleet: KubernetesFleet, service: Callable[[], SessionService]
) -> None:
    with Answering(cluster):
        sessions = service()
        row, launch, new = sessions.start("ann", "", GPUShare(2), "hub")
        assert new
        until(lambda: (claim := cluster.get(f"{CLAIMS}/{row.id}")) and claim.get("status"))
        cluster.pod("jupyter-ann", launch)
        until(
            lambda: fleet.alive(row.id) and (held := fleet._inventory.held(row.id)) and held.claim and held.claim.answer
        )
        again, _, new = sessions.start("ann", "", GPUShare(2), "hub")
    assert new
    assert again.id != row.id
    assert set(cluster.under(PODS)) == set()


def test_whatever_the_api_server_answered_users_are_told_that_something_is_not_available() -> None:
    for answered in (0, 403, 429, 500):
        assert ApiError("it is ill", answered).status == 503
