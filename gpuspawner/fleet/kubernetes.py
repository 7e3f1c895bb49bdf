"""A cluster as a fleet. The API server's objects are the only truth about grants: a session with a card is its
ResourceClaim, one without a card its pod; what is kept here is a copy of them.

A resize is a wish in the claim's annotations, which the node answers in the claim's status. A start is a claim for
exactly the cards that placement has chosen; the spawner makes the pod that uses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from typing import Any, TypeVar

from gpuspawner import kubernetes_names as names
from gpuspawner.capacity import at_most
from gpuspawner.errors import Conflict, GPUSpawnerError, InUse, NoRoom, NotFound, Unavailable
from gpuspawner.fleet.base import (
    CardReadings,
    CardState,
    Cordons,
    FleetChange,
    Grade,
    Grant,
    Holder,
    Notice,
    PodLaunch,
)
from gpuspawner.fleet.cleaning import Cleaner, paths
from gpuspawner.fleet.inventory import Held, Inventory
from gpuspawner.fleet.mirror import Mirror
from gpuspawner.fleet.objects import Answer, Object, SessionClaim, claim_manifest, session_claim, session_labels, wish
from gpuspawner.fleet.placement import place
from gpuspawner.kubernetes_api import ApiError, KubeApi
from gpuspawner.share import GPUShare

log = logging.getLogger(__name__)
T = TypeVar("T")

#: From weak to strong.
_GRADES: tuple[Grade, ...] = ("advisory", "guarded", "kernel")
#: A node answers a wish within milliseconds; one that is busy with a driver, within seconds.
ANSWER_SECONDS = 10.0
_ASK_SECONDS = 40.0  # one request and its answer, the API server being slow
_SYNC_SECONDS = 60.0
#: Who finds that somebody else has changed the claim meanwhile lets others pass for up to so many seconds.
_STEP_ASIDE = 0.02


class KubernetesFleet:
    """The cards of a cluster, for the installation `instance`, whose claims and pods are in `namespace`.

    `connect` makes the connection to the API server, in the fleet's own event loop. Raises Unavailable where the
    cluster's objects cannot be read.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[KubeApi]],
        namespace: str,
        instance: str,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        sync_seconds: float = _SYNC_SECONDS,
        cleaner: Callable[..., Cleaner] = Cleaner,
    ) -> None:
        self._namespace = namespace
        self._instance = instance
        self._answer_seconds = answer_seconds
        self._inventory = Inventory(instance)
        self._placing = threading.Lock()
        self.cordons = Cordons()
        self._waiting: dict[str, tuple[Grant, float]] = {}  # sessions without a card whose pod is not there yet
        self._heard: dict[str, set[asyncio.Future[None]]] = {}  # by session: who waits for its claim to change
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubernetes", daemon=True)
        self._thread.start()
        self._tasks: list[asyncio.Task[None]] = []
        try:
            self._api: KubeApi = self._ask(connect())
            self._cleaner = cleaner(self._api, self._inventory, namespace, instance)
            self._ask(self._begin(sync_seconds), sync_seconds + _ASK_SECONDS)
        except BaseException:
            self.close()
            raise

    async def _begin(self, within: float) -> None:
        inventory, where = self._inventory, paths(self._namespace)
        ours = f"{names.SESSION_LABEL},{names.INSTANCE_LABEL}={self._instance}"
        mirrors = [
            Mirror(self._api, "/api/v1/nodes", inventory.node_changed),
            Mirror(
                self._api,
                "/apis/resource.k8s.io/v1/resourceslices",
                inventory.slice_changed,
                fieldSelector=f"spec.driver={names.DRIVER}",
            ),
            Mirror(self._api, where.pods, self._pod_changed, labelSelector=ours),
            Mirror(self._api, "/apis/resource.k8s.io/v1/resourceclaims", self._claim_changed),
        ]
        self._tasks = [asyncio.create_task(mirror.run()) for mirror in mirrors]
        try:
            async with asyncio.timeout(within):
                for mirror in mirrors:
                    await mirror.synced.wait()
        except TimeoutError as error:
            raise Unavailable("The cluster's cards and claims could not be listed; the log says why.") from error
        self._tasks.append(asyncio.create_task(self._cleaner.run()))

    def close(self) -> None:
        """Let go of the cluster; sessions run on."""
        if self._loop.is_closed():
            return

        async def end() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if hasattr(self, "_api"):
                await self._api.close()

        self._ask(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _ask(self, work: Coroutine[Any, Any, T] | Awaitable[T], within: float = _ASK_SECONDS) -> T:
        """What `work` returns, done in the fleet's loop. Raises Unavailable after `within` seconds."""

        async def wrapped() -> T:
            return await work

        future: Future[T] = asyncio.run_coroutine_threadsafe(wrapped(), self._loop)
        try:
            return future.result(within)
        except FutureTimeout as error:
            future.cancel()
            raise Unavailable(f"The cluster does not answer within {within:g} seconds.") from error

    # -- what changes ----------------------------------------------------------------------------------------

    def _claim_changed(self, name: str, found: Object | None) -> None:
        self._inventory.claim_changed(name, found)
        self._cleaner.claim_changed(name, found)
        session = name.rpartition("/")[2]
        for waiting in self._heard.get(session, ()):
            if not waiting.done():
                waiting.set_result(None)

    def _pod_changed(self, name: str, found: Object | None) -> None:
        self._inventory.pod_changed(name, found)
        self._cleaner.pod_changed(found)

    # -- what is ---------------------------------------------------------------------------------------------

    @property
    def grade(self) -> Grade:
        """The weakest grade of all cards."""
        return min((state.grade for state in self.cards()), key=_GRADES.index, default="guarded")

    def cards(self, uuids: Collection[str] | None = None) -> list[CardState]:
        """Every card, or those of `uuids` that are there."""
        return self.cordons.applied(self._inventory.cards(uuids))

    def grants(self) -> list[Grant]:
        """Every session of this installation, those included that are ending."""
        found = {held.session: grant for held in self._inventory.all_held() if (grant := self._grant(held))}
        return [*found.values(), *(grant for name, grant in self._without_pod().items() if name not in found)]

    def grant(self, session: str) -> Grant | None:
        """What one session holds."""
        held = self._inventory.held(session)
        found = self._grant(held) if held is not None else None
        return found or self._without_pod().get(session)

    def _grant(self, held: Held) -> Grant | None:
        grant = self._inventory.grant(held)
        return replace(grant, ended=True) if grant and self._cleaner.is_ending(held.session) else grant

    def _without_pod(self) -> dict[str, Grant]:
        now = time.monotonic()
        self._waiting = {name: each for name, each in self._waiting.items() if each[1] > now}
        return {name: each[0] for name, each in self._waiting.items()}

    def alive(self, session: str) -> bool:
        """Whether the session has a pod that is not over."""
        held = self._inventory.held(session)
        return held is not None and held.pod is not None and not held.pod.over

    def readings(self) -> dict[str, CardReadings]:
        """Not known here: the nodes tell the API server nothing that changes each second."""
        return {}

    def used_bytes(self, session: str) -> int | None:
        """Not known here: the session's own server asks the driver."""
        return None

    def busy(self) -> Mapping[str, bool | None]:
        """Not known here."""
        return {grant.session: None for grant in self.grants()}

    def energy_mj(self) -> dict[str, int]:
        """Nothing: nodes do not report energy yet."""
        return {}

    def notices(self, session: str) -> list[Notice]:
        """What the session's user should know now: that a card under it has failed."""
        held = self._inventory.held(session)
        if held is None or held.claim is None:
            return []
        failed = [state for state in self.cards(held.claim.pinned) if state.health.state == "failed"]
        return [
            Notice(
                "card_failed",
                f"The card under this session is out of service: {state.health.reason} Save your work, stop the "
                "server, and start it on another card.",
                self._cleaner.failed_since(state.card.uuid),
            )
            for state in failed
        ]

    def holders(self) -> list[Holder]:
        """Not known here. Raises Unavailable."""
        raise Unavailable(
            "On a cluster the processes on a card are known to its node alone: see there.", code="on_node"
        )

    def watch(self) -> list[FleetChange]:
        """What happened since the last look."""
        return self._cleaner.changes()

    # -- start and end ---------------------------------------------------------------------------------------

    def start(
        self,
        session: str,
        user: str,
        share: GPUShare,
        card: str | None = None,
        *,
        burst: bool = False,
        server: str = "",
    ) -> tuple[Grant, PodLaunch]:
        """Make the claim of a new session. The pod that uses it is the spawner's to make."""
        launch = self._launch(session, user, server, share)
        if not share.cards:
            grant = Grant(session, (), 0, owner=(user, server, share))
            self._waiting[session] = (grant, time.monotonic() + self._cleaner.start_seconds)
            return grant, launch
        with self._placing:
            uuids = self._place(share, card)
            self._inventory.reserve(session, uuids, share.eighths_per_card)
        manifest = claim_manifest(session, self._instance, self._namespace, user, server, share, uuids, burst=burst)
        try:
            made = self._ask(self._api.create(paths(self._namespace).claims, manifest))
            self._inventory.claim_changed(f"{self._namespace}/{session}", made)
        except GPUSpawnerError as error:
            self._cleaner.end(session, "it may have been made although nobody was told")
            raise Unavailable(f"The session's claim could not be made. {error.message}") from error
        finally:
            self._inventory.unreserve(session)
        grant = Grant(
            session,
            self._inventory.cards_named(uuids),
            share.eighths_per_card,
            burst=burst,
            owner=(user, server, share),
        )
        return grant, launch

    def _place(self, share: GPUShare, card: str | None) -> tuple[str, ...]:
        """Where nothing has failed just now, and if there is no such place wherever it fits."""
        states, avoided = self.cards(), self._cleaner.avoided()
        if avoided and card is None:
            with contextlib.suppress(NoRoom, NotFound):
                return place(share, [state for state in states if state.card.uuid not in avoided])
        return place(share, states, card)

    @property
    def tells(self) -> bool:
        """Not yet: nobody is parked on a cluster."""
        return False

    def tell(self, session: str, notice: str | None) -> None:
        """Nothing: see `tells`."""

    def launch(self, session: str) -> PodLaunch:
        """How to make the pod of a session that has none yet. A claim that a pod has used is not used again: the
        kubelet would not prepare it anew. Raises NotFound."""
        grant, held = self.grant(session), self._inventory.held(session)
        used = held is not None and (held.pod is not None or (held.claim is not None and held.claim.answer is not None))
        if grant is None or grant.ended or grant.owner is None or used:
            raise NotFound("This session has ended.")
        return self._launch(session, *grant.owner)

    def _launch(self, session: str, user: str, server: str, share: GPUShare) -> PodLaunch:
        notes = {names.USER: user, names.SERVER: server, names.SHARE: str(share)}
        labels = session_labels(session, self._instance, user)
        return PodLaunch(self._namespace, session if share.cards else None, labels, notes)

    def end(self, session: str, reason: str) -> bool:
        """Have a session's pod and claim deleted, now if the API server answers and else later; whether it is gone."""
        self._waiting.pop(session, None)
        log.info("session %s ends: %s", session, reason)
        self._cleaner.end(session, reason)
        try:
            self._ask(self._cleaner.delete(session))
        except GPUSpawnerError as error:
            log.warning("session %s will be deleted later: %s", session, error)
        return self.grant(session) is None

    # -- change ----------------------------------------------------------------------------------------------

    def resize(self, session: str, eighths: int) -> None:
        """Change the eighths that a running session has of its card."""
        grant = self._live(session)
        if len(grant.cards) > 1:
            raise Conflict("A session with several cards holds them whole; it cannot be resized while it runs.")
        if eighths > grant.eighths_per_card:
            self._check_room(grant, eighths)
        self._ask(self._change(session, eighths=eighths), 3 * _ASK_SECONDS)

    def set_burst(self, session: str, burst: bool) -> None:
        """Let a running session compute with what others leave idle, or no longer."""
        if self._live(session).burst != burst:
            self._ask(self._change(session, burst=burst), 3 * _ASK_SECONDS)

    def _live(self, session: str) -> Grant:
        grant = self.grant(session)
        if grant is None or grant.ended:
            raise NotFound("This session has ended.")
        if not grant.cards:
            raise Conflict("The card under this session is not known to the cluster just now. Try again in a moment.")
        return grant

    def _check_room(self, grant: Grant, eighths: int) -> None:
        """What others hold and what is being started, our own starts under way included."""
        for state in self.cards([card.uuid for card in grant.cards]):
            if state.health.state == "failed":
                raise Conflict(
                    f"The card is out of service: {state.health.reason} Choose another one.", code="card_failed"
                )
            free = state.free_eighths + grant.eighths_per_card
            if eighths > free:
                raise NoRoom(at_most(free, eighths), free_eighths=free)

    async def _change(self, session: str, eighths: int | None = None, burst: bool | None = None) -> None:
        """Write a wish and await its answer."""
        claim = await self._wish(session, eighths, burst)
        answer = await self._answered(session, claim.request)
        if answer is None:
            await self._withdraw(session, claim)
        elif answer.request > claim.request:
            raise Conflict("This session's share was changed by somebody else in the same moment.")
        elif not answer.granted:
            raise _refused(answer)

    async def _wish(self, session: str, eighths: int | None, burst: bool | None) -> SessionClaim:
        """The claim with a new wish, whose number is the one after the last, whoever wrote that."""
        path = f"{paths(self._namespace).claims}/{session}"
        deadline = asyncio.get_running_loop().time() + self._answer_seconds
        while asyncio.get_running_loop().time() < deadline:
            held = self._inventory.held(session)
            if held is None or held.claim is None or held.claim.ending:
                raise NotFound("This session has ended.")
            claim = held.claim
            wanted = eighths if eighths is not None else claim.answer.eighths if claim.answer else claim.wanted
            wants_burst = claim.burst if burst is None else burst
            notes = wish(wanted, claim.request + 1, burst=wants_burst)
            change = {"metadata": {"resourceVersion": claim.version, "uid": claim.uid, "annotations": notes}}
            try:
                made = await self._api.merge(path, change)
            except ApiError as error:
                if error.answered == 404:
                    raise NotFound("This session has ended.") from error
                if error.answered != 409:
                    raise
                await self._heard_of(session, claim.version)
                await asyncio.sleep(random.uniform(0, _STEP_ASIDE))
                continue
            self._inventory.claim_changed(f"{self._namespace}/{session}", made)
            written = session_claim(made)
            if written is None:
                raise NotFound("This session's claim was made unreadable by somebody.")
            return written
        raise Unavailable("The session's claim is changed by others all the time. Try again in a moment.")

    async def _heard_of(self, session: str, version: str) -> None:
        """Wait until the watch shows a newer claim than `version`; where it is late, ask."""
        try:
            async with asyncio.timeout(1.0):
                while (held := self._inventory.held(session)) and held.claim and held.claim.version == version:
                    await self._next(session)
        except TimeoutError:
            path = f"{paths(self._namespace).claims}/{session}"
            self._inventory.claim_changed(f"{self._namespace}/{session}", await self._api.find(path))

    async def _answered(self, session: str, request: int) -> Answer | None:
        """The node's answer to that wish or to a later one; None where it does not come. NotFound: it has ended."""
        try:
            async with asyncio.timeout(self._answer_seconds):
                while True:
                    held = self._inventory.held(session)
                    if held is None or held.claim is None or held.claim.ending:
                        raise NotFound("This session has ended.")
                    answer = held.claim.answer
                    if answer is not None and answer.request >= request:
                        return answer
                    await self._next(session)
        except TimeoutError:
            return None

    async def _next(self, session: str) -> None:
        """Wait until the session's claim has changed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._heard.setdefault(session, set())
        waiting.add(future)
        try:
            await future
        finally:
            waiting.discard(future)
            if not waiting:
                self._heard.pop(session, None)

    async def _withdraw(self, session: str, claim: SessionClaim) -> None:
        """Nobody has answered: wish for what is in force, so that the node does not do it when nobody waits."""
        before = claim.answer.eighths if claim.answer and claim.answer.eighths else claim.share.eighths_per_card
        await self._wish(session, before, None)
        raise Unavailable(
            "The session's node does not answer, so the share stays as it is. If the server still starts, wait for it."
        )


def _refused(answer: Answer) -> GPUSpawnerError:
    message = answer.message or f"The node refused it ({answer.reason})."
    if answer.reason == names.REASON_NO_ROOM:
        return NoRoom(message)
    if answer.reason == names.REASON_IN_USE:
        return InUse(message, need_to_free_bytes=answer.need_to_free_bytes)
    if answer.reason == names.REASON_ENDED:
        return NotFound("This session has ended.")
    if answer.reason == names.REASON_UNAVAILABLE:
        return Unavailable(message)
    if answer.reason == names.REASON_CARD_FAILED:
        return Conflict(message, code="card_failed")
    return Conflict(message, code="not_resizable" if answer.reason == names.REASON_NOT_RESIZABLE else None)
