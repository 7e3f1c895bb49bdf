"""Ends what has nobody any more: claims whose pod is gone, pods whose claim is gone, starts that came to nothing. And
claims that a node has refused, since only whoever placed them can place them again.

It looks at what is there now and not at what happened, so that whatever crashed in between is cleared away all the
same. What the copy of the objects says is asked of the API server itself before something is ended for it.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import threading
import time
from dataclasses import dataclass
from urllib.parse import quote

from gpuspawner import kubernetes_names as names
from gpuspawner.errors import GPUSpawnerError
from gpuspawner.fleet.base import FleetChange
from gpuspawner.fleet.inventory import Held, Inventory, Pod, seconds
from gpuspawner.fleet.objects import Object, refusal
from gpuspawner.kubernetes_api import KubeApi

log = logging.getLogger(__name__)

#: A session for which no pod was made gives its eighths back after this many seconds.
START_SECONDS = 300.0
#: A pod for which the scheduler finds no place where its card is, is placed again after so many seconds.
UNSCHEDULABLE_SECONDS = 15.0
#: For so many seconds no new session is placed on a card on which one could not be started.
AVOID_SECONDS = 30.0
_EVERY = 0.25
_TRY_AGAIN = 2.0
_AT_ONCE = 20


@dataclass(frozen=True)
class Paths:
    """Where the API server has a namespace's claims and pods."""

    claims: str
    pods: str


def paths(namespace: str) -> Paths:
    """The places of a namespace."""
    name = quote(namespace, safe="")
    return Paths(f"/apis/resource.k8s.io/v1/namespaces/{name}/resourceclaims", f"/api/v1/namespaces/{name}/pods")


class Cleaner:
    """Of the installation `instance`. Everything but `end`, `changes`, `avoided` and `failed_since` is called in the
    event loop."""

    def __init__(
        self,
        api: KubeApi,
        inventory: Inventory,
        namespace: str,
        instance: str,
        *,
        start_seconds: float = START_SECONDS,
        unschedulable_seconds: float = UNSCHEDULABLE_SECONDS,
        avoid_seconds: float = AVOID_SECONDS,
    ) -> None:
        self._api = api
        self._inventory = inventory
        self._namespace = namespace
        self._instance = instance
        self.start_seconds = start_seconds
        self._unschedulable_seconds = unschedulable_seconds
        self._avoid_seconds = avoid_seconds
        self._lock = threading.Lock()
        self._ending: dict[str, float] = {}  # sessions, and when their deletion is asked for next (monotonic)
        self._changes: collections.deque[FleetChange] = collections.deque()
        self._avoid: dict[str, float] = {}  # cards, and until when (monotonic)
        self._failed: dict[str, float] = {}  # cards, and since when (seconds since the epoch)
        self._refused: dict[str, Object] = {}  # claims of others that a node has refused
        self._had_pod: set[str] = set()  # sessions; a claim forgets its pods when the last one is gone
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    # -- from any thread ---------------------------------------------------------------------------------------

    def end(self, session: str, reason: str) -> None:
        """Have a session's pod and claim deleted, until they are gone."""
        with self._lock:
            self._ending.setdefault(session, 0.0)

    def is_ending(self, session: str) -> bool:
        """Whether a session's pod and claim are being deleted."""
        with self._lock:
            return session in self._ending

    def changes(self) -> list[FleetChange]:
        """What happened since the last question."""
        found = []
        while self._changes:
            found.append(self._changes.popleft())
        return found

    def avoided(self) -> set[str]:
        """Cards on which nothing new is placed for a moment."""
        now = time.monotonic()
        with self._lock:
            self._avoid = {uuid: until for uuid, until in self._avoid.items() if until > now}
            return set(self._avoid)

    def failed_since(self, uuid: str) -> float:
        """Since when a card is known to have failed, in seconds since the epoch."""
        return self._failed.get(uuid, time.time())

    # -- in the loop -------------------------------------------------------------------------------------------

    def claim_changed(self, name: str, found: Object | None) -> None:
        """A claim of whomever has changed."""
        if found is not None and refusal(found) is not None:
            self._refused[name] = found
        else:
            self._refused.pop(name, None)

    def pod_changed(self, found: Object | None) -> None:
        """A pod of ours has changed."""
        session = ((found or {}).get("metadata", {}).get("labels") or {}).get(names.SESSION_LABEL)
        if session:
            self._had_pod.add(session)

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("a look at claims and pods failed")
            await asyncio.sleep(_EVERY)

    async def look(self) -> None:
        """One look at all sessions, and the next step of each that is ending."""
        self._note_failed_cards()
        now = time.time()
        every = self._inventory.all_held()
        self._had_pod &= {held.session for held in every}
        judged = [(held, reason) for held in every if (reason := self._judge(held, now))]
        for held, reason in judged:
            if held.session not in self._ending and await self._is_so(held):
                self._give_up(held, reason)
        with self._lock:
            due = [session for session, when in self._ending.items() if when <= time.monotonic()]
        await asyncio.gather(*(self._try_to_delete(session) for session in due))
        for name, claim in list(self._refused.items()):
            await self._delete_users(name, claim)

    def _note_failed_cards(self) -> None:
        failed = [state.card.uuid for state in self._inventory.cards() if state.health.state == "failed"]
        self._failed = {uuid: self._failed.get(uuid, time.time()) for uuid in failed}

    def _judge(self, held: Held, now: float) -> str | None:
        """Why a session has ended; None where it has not."""
        claim, pod = held.claim, held.pod
        if claim is not None and claim.refused is not None:
            return f"{names.PLACE_AGAIN}: {claim.refused}"
        if pod is not None and pod.over:
            return f"its pod has ended{f': {pod.reason}' if pod.reason else ''}"
        if claim is None:
            needs_one = pod is not None and (pod.owner is None or pod.owner[2].cards)
            return "its claim is gone" if needs_one else None
        if claim.ending:
            return "its claim was deleted"
        if claim.answer is not None and claim.answer.eighths == 0:
            return "its node has ended it"
        if pod is not None:
            stuck = pod.unschedulable
            if stuck is not None and now - stuck[1] > self._unschedulable_seconds:
                return f"{names.PLACE_AGAIN}: the pod cannot run where its card is ({stuck[0]})"
            return None
        if claim.pods or claim.answer is not None or held.session in self._had_pod:
            return "its pod is gone"
        if now - seconds(claim.created) > self.start_seconds:
            return f"no pod was started within {self.start_seconds:.0f} s"
        return None

    async def _is_so(self, held: Held) -> bool:
        """Whether the API server itself says so too; copies may be late, that of claims more than that of pods."""
        listed = await self._api.get(
            paths(self._namespace).pods,
            labelSelector=f"{names.SESSION_LABEL}={held.session},{names.INSTANCE_LABEL}={self._instance}",
        )
        for pod in listed["items"]:
            self._inventory.pod_changed(f"{self._namespace}/{pod['metadata']['name']}", pod)
        claim = await self._api.find(f"{paths(self._namespace).claims}/{held.session}")
        self._inventory.claim_changed(f"{self._namespace}/{held.session}", claim)
        now = self._inventory.held(held.session)
        return now is not None and self._judge(now, time.time()) is not None

    def _give_up(self, held: Held, reason: str) -> None:
        log.info("session %s has ended: %s", held.session, reason)
        if reason.startswith(names.PLACE_AGAIN) and held.claim is not None:
            until = time.monotonic() + self._avoid_seconds
            with self._lock:
                self._avoid.update(dict.fromkeys(held.claim.pinned, until))
        # Told before it is so: whoever finds the session ended can know why.
        self._changes.append(FleetChange(held.session, "ended", reason))
        self.end(held.session, reason)

    async def _try_to_delete(self, session: str) -> None:
        with self._lock:
            self._ending[session] = time.monotonic() + _TRY_AGAIN
        try:
            async with self._at_once:
                gone = await self.delete(session)
        except GPUSpawnerError as error:
            log.warning("session %s is not deleted yet: %s", session, error)
            return
        if gone:
            with self._lock:
                self._ending.pop(session, None)
            self._changes.append(FleetChange(session, "freed"))

    async def delete(self, session: str) -> bool:
        """Ask for the deletion of a session's pod and claim; whether they are gone. Raises ApiError."""
        held = self._inventory.held(session)
        pod = held.pod if held is not None else None
        if pod is not None and not pod.ending:
            await self._delete_pod(pod)
        await self._api.delete(f"{paths(self._namespace).claims}/{session}")
        claim = await self._api.find(f"{paths(self._namespace).claims}/{session}")
        self._inventory.claim_changed(f"{self._namespace}/{session}", claim)
        return claim is None and (self._inventory.held(session) is None)

    async def _delete_pod(self, pod: Pod) -> None:
        await self._api.delete(f"{paths(self._namespace).pods}/{pod.name.rpartition('/')[2]}", uid=pod.uid)

    async def _delete_users(self, name: str, claim: Object) -> None:
        """Delete the pods that wait for a claim which a node has refused: the kubelet would ask again for ever. Whoever
        made them makes them anew, or has to."""
        namespace = name.partition("/")[0]
        for user in (claim.get("status") or {}).get("reservedFor") or []:
            if user.get("resource") != "pods":
                continue
            log.warning("pod %s/%s is deleted: its claim %s was refused", namespace, user["name"], name)
            try:
                await self._api.delete(f"{paths(namespace).pods}/{quote(user['name'], safe='')}", uid=user["uid"])
            except GPUSpawnerError as error:
                log.warning("pod %s/%s could not be deleted: %s", namespace, user["name"], error)
        self._refused.pop(name, None)
