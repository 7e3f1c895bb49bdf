"""What the API server's objects say of cards and sessions, kept as they change. Thread-safe, no I/O.

Each change costs only what it touches: thousands of cards and claims are looked at many times a second.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gpuspawner import kubernetes_names as names
from gpuspawner.card import Card
from gpuspawner.errors import InvalidInput
from gpuspawner.fleet.base import CardHealth, CardState, Grant
from gpuspawner.fleet.objects import (
    DeviceKey,
    Object,
    PublishedCard,
    SessionClaim,
    Taken,
    node_is_ready,
    published_cards,
    session_claim,
    takes,
)
from gpuspawner.share import EIGHTHS_PER_CARD, GPUShare

_OVER = ("Succeeded", "Failed")
_REMEMBERED_DELETIONS = 1000


@dataclass(frozen=True)
class Pod:
    """A session's pod. `unschedulable`: why the scheduler finds no place for it, and since when (seconds since the
    epoch); None where it found one or has not looked."""

    name: str
    uid: str
    session: str
    phase: str
    ending: bool
    owner: tuple[str, str, GPUShare] | None
    unschedulable: tuple[str, float] | None
    reason: str

    @property
    def over(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in _OVER


@dataclass(frozen=True)
class Held:
    """A session as the objects show it: by its claim, or where it has no card by its pod alone."""

    session: str
    claim: SessionClaim | None
    pod: Pod | None


@dataclass(frozen=True)
class _Seen:
    """Which claim it was, and how new; versions of one kind of object are numbers that rise."""

    uid: str
    version: int

    @classmethod
    def of(cls, found: Object) -> _Seen:
        return cls(found["metadata"]["uid"], int(found["metadata"]["resourceVersion"]))


@dataclass
class _Reserved:
    """What a start takes whose claim is being made."""

    uuids: tuple[str, ...]
    eighths: int


class Inventory:
    """Cards and sessions of the installation `instance`; the claims of everybody count against the cards."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._lock = threading.Lock()
        self._cards: dict[DeviceKey, PublishedCard] = {}
        self._by_uuid: dict[str, DeviceKey] = {}
        self._of_slice: dict[str, list[DeviceKey]] = {}
        self._nodes: dict[str, str] = {}
        self._of_node: dict[str, set[DeviceKey]] = {}
        self._taken: Counter[DeviceKey] = Counter()
        self._waiting: Counter[str] = Counter()  # by uuid: asked for and not allocated yet
        self._of_claim: dict[str, tuple[list[Taken], list[tuple[str, int]]]] = {}
        self._reserved: dict[str, _Reserved] = {}
        self._claims: dict[str, SessionClaim] = {}  # own, by session
        self._session_of: dict[str, str] = {}  # by "namespace/name" of claim or pod, with its kind before it
        self._pods: dict[str, Pod] = {}  # own, by session
        self._seen: dict[str, _Seen] = {}  # claims by name
        self._gone: dict[str, _Seen | None] = {}  # claims that are gone, the oldest first
        self._states: dict[DeviceKey, CardState] = {}
        self._known_cards: dict[str, Card] = {}

    # -- changes ---------------------------------------------------------------------------------------------

    def slice_changed(self, name: str, found: Object | None) -> None:
        """A ResourceSlice is now so; None: it is gone."""
        with self._lock:
            for key in self._of_slice.pop(name, []):
                gone = self._cards.pop(key)
                self._by_uuid.pop(gone.card.uuid, None)
                self._of_node[gone.node].discard(key)
                self._states.pop(key, None)
            cards = published_cards(found) if found is not None else []
            self._of_slice[name] = [card.key for card in cards]
            for card in cards:
                self._cards[card.key] = card
                self._by_uuid[card.card.uuid] = card.key
                self._of_node.setdefault(card.node, set()).add(card.key)
                self._known_cards[card.card.uuid] = card.card

    def node_changed(self, name: str, found: Object | None) -> None:
        """A node is now so; None: it is gone."""
        state = "not_ready" if found is None else node_is_ready(found)
        with self._lock:
            if self._nodes.get(name) != state:
                self._nodes[name] = state
                for key in self._of_node.get(name, ()):
                    self._states.pop(key, None)

    def claim_changed(self, name: str, found: Object | None) -> None:
        """A claim ("namespace/name") is now so; None: it is gone. What is older than what is known is passed over: an
        answer of the API server and the same change in a watch come in any order."""
        with self._lock:
            before = self._seen.get(name)
            if found is None:
                self._gone[name] = self._seen.pop(name, None)
                while len(self._gone) > _REMEMBERED_DELETIONS:
                    del self._gone[next(iter(self._gone))]
            else:
                now = _Seen.of(found)
                if (before and now.uid == before.uid and now.version < before.version) or self._is_gone(name, now):
                    return
                self._seen[name] = now
            self._claim(name, found)

    def _is_gone(self, name: str, now: _Seen) -> bool:
        gone = self._gone.get(name)
        return gone is not None and gone.uid == now.uid

    def _claim(self, name: str, found: Object | None) -> None:
        before = self._of_claim.pop(name, None)
        if before is not None:
            self._count(before, -1)
        self._claims.pop(self._session_of.pop(f"claim {name}", ""), None)
        if found is None:
            return
        claim = session_claim(found)
        allocated = takes(found)
        waiting: list[tuple[str, int]] = []
        if claim is not None:
            if not allocated and not claim.ending:
                waiting = [(uuid, claim.share.eighths_per_card) for uuid in claim.pinned]
            elif allocated and claim.answer and claim.request > claim.answer.request:
                growing = claim.wanted - claim.answer.eighths
                allocated = [*allocated, *(Taken(each.key, max(0, growing)) for each in allocated)]
            if claim.instance == self._instance:
                self._claims[claim.session] = claim
                self._session_of[f"claim {name}"] = claim.session
        self._of_claim[name] = (allocated, waiting)
        self._count(self._of_claim[name], 1)

    def _count(self, what: tuple[list[Taken], list[tuple[str, int]]], sign: int) -> None:
        for key, eighths in what[0]:
            self._taken[key] += sign * eighths
            self._states.pop(key, None)
        for uuid, eighths in what[1]:
            self._waiting[uuid] += sign * eighths
            self._states.pop(self._by_uuid.get(uuid, DeviceKey("", "")), None)

    def pod_changed(self, name: str, found: Object | None) -> None:
        """A pod with a session's label is now so; None: it is gone."""
        with self._lock:
            session = self._session_of.pop(f"pod {name}", "")
            if session and self._pods.get(session, None) is not None and self._pods[session].name == name:
                del self._pods[session]
            pod = None if found is None else _pod(name, found, self._instance)
            if pod is not None:
                self._pods[pod.session] = pod
                self._session_of[f"pod {name}"] = pod.session

    def reserve(self, session: str, uuids: tuple[str, ...], eighths: int) -> None:
        """A start has been placed there, and its claim is being made."""
        with self._lock:
            self._reserved[session] = _Reserved(uuids, eighths)
            self._count(([], [(uuid, eighths) for uuid in uuids]), 1)

    def unreserve(self, session: str) -> None:
        """The claim is there, or will not be."""
        with self._lock:
            reserved = self._reserved.pop(session, None)
            if reserved is not None:
                self._count(([], [(uuid, reserved.eighths) for uuid in reserved.uuids]), -1)

    # -- what is ---------------------------------------------------------------------------------------------

    def cards(self, uuids: Collection[str] | None = None) -> list[CardState]:
        """Every card, or those of `uuids` that are there."""
        with self._lock:
            if uuids is None:
                return [self._state(key) for key in self._cards]
            return [self._state(self._by_uuid[uuid]) for uuid in uuids if uuid in self._by_uuid]

    def _state(self, key: DeviceKey) -> CardState:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = self._fresh_state(self._cards[key])
        return state

    def _fresh_state(self, found: PublishedCard) -> CardState:
        node = self._nodes.get(found.node, "not_ready")
        health = found.health
        if node == "not_ready":
            health = CardHealth("failed", f"Its node {found.node} does not answer.")
        elif node == "cordoned" and health.state == "ok":
            health = CardHealth("warning", f"Its node {found.node} takes no new sessions.")
        free = found.published - self._taken[found.key] - self._waiting[found.card.uuid]
        usable = health.state != "failed" and node == "ready"
        return CardState(
            card=found.card,
            free_eighths=min(EIGHTHS_PER_CARD, max(0, free)) if usable else 0,
            health=health,
            grade=found.grade,
            resize=found.resize,
            node=found.node,
            island=found.island,
        )

    def held(self, session: str) -> Held | None:
        """A session of this installation."""
        with self._lock:
            return self._held(session)

    def all_held(self) -> list[Held]:
        """Every session of this installation."""
        with self._lock:
            return [held for session in {**self._claims, **self._pods} if (held := self._held(session)) is not None]

    def _held(self, session: str) -> Held | None:
        claim, pod = self._claims.get(session), self._pods.get(session)
        return None if claim is None and pod is None else Held(session, claim, pod)

    def grant(self, held: Held) -> Grant | None:
        """What a session holds; None for a pod that is left over from one whose claim is gone."""
        claim, pod = held.claim, held.pod
        if claim is None:
            if pod is None or pod.owner is None or pod.owner[2].cards:
                return None
            return Grant(held.session, (), 0, ended=pod.ending, owner=pod.owner)
        answer = claim.answer
        return Grant(
            session=held.session,
            cards=self.cards_named(claim.pinned),
            eighths_per_card=answer.eighths if answer and answer.eighths else claim.share.eighths_per_card,
            ended=claim.ending,
            burst=claim.burst,
            owner=(claim.user, claim.server, claim.share),
        )

    def cards_named(self, uuids: Iterable[str]) -> tuple[Card, ...]:
        """Cards by uuid, those included whose slice is not there just now."""
        with self._lock:
            return tuple(self._known_cards[uuid] for uuid in uuids if uuid in self._known_cards)


def _pod(name: str, found: Object, instance: str) -> Pod | None:
    meta = found["metadata"]
    labels: Mapping[str, str] = meta.get("labels") or {}
    session = labels.get(names.SESSION_LABEL)
    if not session or labels.get(names.INSTANCE_LABEL) != instance:
        return None
    status = found.get("status") or {}
    return Pod(
        name=name,
        uid=meta["uid"],
        session=session,
        phase=status.get("phase") or "Pending",
        ending="deletionTimestamp" in meta,
        owner=_owner(meta.get("annotations") or {}),
        unschedulable=_unschedulable(status.get("conditions") or []),
        reason=" ".join(str(status[key]) for key in ("reason", "message") if status.get(key)),
    )


def _owner(notes: Mapping[str, str]) -> tuple[str, str, GPUShare] | None:
    try:
        return notes.get(names.USER, ""), notes.get(names.SERVER, ""), GPUShare.parse(notes.get(names.SHARE))
    except InvalidInput:
        return None


def _unschedulable(conditions: list[Object]) -> tuple[str, float] | None:
    for each in conditions:
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            if each.get("reason") != "Unschedulable":
                return None
            return str(each.get("message") or "no reason was given"), seconds(each.get("lastTransitionTime"))
    return None


def seconds(when: str | None) -> float:
    """A time of Kubernetes in seconds since the epoch; 0 where there is none."""
    return datetime.fromisoformat(when).timestamp() if when else 0.0
