"""Follows the acts of `gpuspawner.protocol` on this node: does each effect to its end, and sends back what came of it.

An act runs in a thread of its own, since it waits for disk, driver and API server; the lock is the agent's own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gpuspawner import kubernetes_names as names
from gpuspawner import protocol
from gpuspawner.capacity import Allocation, Charge, Key, Refusal
from gpuspawner.errors import GPUSpawnerError
from gpuspawner.kubernetes_api import KubeApi, Object
from gpuspawner.node.dra import published
from gpuspawner.node.dra.claims import Claims, Outcome, Part, Prepared, allocation
from gpuspawner.node.hands import Hands
from gpuspawner.protocol import Act, Book

log = logging.getLogger(__name__)
T = TypeVar("T")

CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
_LOOK_AGAIN = 0.1
#: Acts wait for the API server for as long as it is away, each in a thread.
_THREADS = 64
_REASONS = {
    "no_room": names.REASON_NO_ROOM,
    "in_use": names.REASON_IN_USE,
    "unavailable": names.REASON_UNAVAILABLE,
    "driver": names.REASON_UNAVAILABLE,
}


def claim_path(namespace: str, name: str) -> str:
    """Where the API server has a claim."""
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


class Context:
    """What an act is about: a claim's part, its card, for whom. `wait`: seconds for which it may wait for room.
    `first`: the claim as it was just read from the store itself."""

    def __init__(
        self,
        prepared: Prepared,
        part: Part,
        card: str,
        *,
        user: str = "",
        wait: float = 0.0,
        first: Object | None = None,
    ) -> None:
        self.prepared = prepared
        self.part = part
        self.card = card
        self.user = user
        self.deadline = time.monotonic() + wait
        self.first = first
        self.cancelled = threading.Event()

    @property
    def key(self) -> Key:
        """By which the protocol knows it."""
        return published.key_of(self.prepared.uid, self.part)


class Acts:
    """Runs acts. `publish`: brings the slice to what it should be. `say`: writes a claim's status (session, why it was
    refused). `cards`: uuid by device name. `ready`: what else a session needs before its processes start."""

    def __init__(
        self,
        hands: Hands,
        claims: Claims,
        api: KubeApi,
        node: str,
        *,
        cards: Callable[[], dict[str, str]],
        publish: Callable[[], Coroutine[Any, Any, None]],
        say: Callable[[Prepared, Outcome | None], Coroutine[Any, Any, None]],
    ) -> None:
        self._hands = hands
        self._claims = claims
        self._api = api
        self._node = node
        self._cards = cards
        self._publish = publish
        self._say = say
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="act")
        self._saying: set[asyncio.Task[None]] = set()
        #: Targets of grows under way, by card.
        self.growing: dict[str, dict[Key, int]] = {}

    async def run(self, begin: Callable[[Book], Act], context: Context) -> None:
        """Follow an act to its end. Raises what it raises."""
        loop = asyncio.get_running_loop()
        book = Book(self.charges()[context.card], self.growing.setdefault(context.card, {}))
        running = loop.run_in_executor(self._threads, self._follow, begin(book), book, context, loop)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            context.cancelled.set()
            raise

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def charges(self) -> dict[str, dict[Key, Charge]]:
        """What every card is charged with, by uuid."""
        cards = {uuid: device for device, uuid in self._cards().items()}
        return published.charges(cards, self._hands.records(), {each.session: each for each in self._claims.all()})

    def _follow(self, act: Act, book: Book, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        locked = 0
        answer: Any = None
        failed: GPUSpawnerError | None = None
        try:
            while True:
                effect = act.throw(failed) if failed else act.send(answer)
                answer, failed = None, None
                if isinstance(effect, protocol.Lock):
                    self._hands.lock.acquire()
                    locked += 1
                    book.charges.clear()
                    book.charges.update(self.charges()[context.card])
                elif isinstance(effect, protocol.Unlock):
                    self._hands.settle(context.card)
                    locked -= 1
                    self._hands.lock.release()
                else:
                    try:
                        answer = self._do(effect, context, loop)
                    except GPUSpawnerError as error:
                        failed = error
        except StopIteration:
            pass
        finally:
            for _ in range(locked):
                self._hands.lock.release()

    def _do(self, effect: protocol.Effect, context: Context, loop: asyncio.AbstractEventLoop) -> Any:
        """One effect, to its end. Raises GPUSpawnerError."""
        session, hands = context.prepared.session, self._hands
        match effect:
            case protocol.Persist(charge):
                self._persist(charge, context)
            case protocol.Remove():
                hands.remove(session)
            case protocol.Apply(_, eighths):
                hands.apply(session, eighths)
                if not eighths:
                    hands.end(session)
            case protocol.Publish():
                _await(self._publish(), loop)
            case protocol.ListAllocations():
                return self._allocations(_await(self._api.get(CLAIMS), loop)["items"], context)
            case protocol.GetAllocation():
                claim, context.first = context.first, None
                if claim is None:
                    claim = _await(self._api.find(claim_path(*context.prepared.key)), loop)
                return self._allocation(claim, context)
            case protocol.Excess(_, eighths):
                return hands.excess(session, context.card, eighths)
            case protocol.Gone():
                return hands.gone(session)
            case protocol.Cancelled():
                return context.cancelled.is_set()
            case protocol.AwaitRoom():
                time.sleep(_LOOK_AGAIN)
                return time.monotonic() < context.deadline
            case protocol.Report():
                self._report(context, None, loop)
            case protocol.ReportRefused(_, refusal):
                self._report(context, _outcome(refusal), loop)
        return None

    def _persist(self, charge: Charge, context: Context) -> None:
        session = context.prepared.session
        if charge.held:
            self._hands.persist_held(session)
        else:
            self._hands.persist(session, context.user, context.card, charge.limit, charge.charged)
        known = self._claims.get(session)
        if known is not None and charge.request > known.number:
            self._claims.answer(session, charge.request, _answer(charge))

    def _report(self, context: Context, refused: Outcome | None, loop: asyncio.AbstractEventLoop) -> None:
        prepared = self._claims.get(context.prepared.session) or context.prepared

        def say() -> None:
            task = loop.create_task(self._say(prepared, refused))
            self._saying.add(task)
            task.add_done_callback(self._saying.discard)

        loop.call_soon_threadsafe(say)

    def _allocation(self, claim: Object | None, context: Context) -> Allocation | None:
        if claim is None or claim["metadata"]["uid"] != context.prepared.uid:
            return None
        return next((each for each in self._allocations([claim], context) if each.key == context.key), None)

    def _allocations(self, claims: list[Object], context: Context) -> list[Allocation]:
        """Those of the act's card."""
        found = []
        for claim in claims:
            try:
                allocated = allocation(claim, self._node)
            except GPUSpawnerError:
                continue  # refused at prepare
            for part in allocated.parts if allocated else ():
                if allocated and part.device == context.part.device:
                    found.append(Allocation(published.key_of(allocated.uid, part), part.eighths))
        return found


def _answer(charge: Charge) -> Outcome:
    if charge.refused is not None:
        return _outcome(charge.refused)
    return Outcome(names.REASON_IN_FORCE, f"Wish {charge.request} is in force.")


def _outcome(refusal: Refusal) -> Outcome:
    reason = _REASONS.get(refusal.code, names.REASON_UNAVAILABLE)
    return Outcome(reason, refusal.message, refusal.need_to_free_bytes)


def _await(what: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """From a thread: what the loop makes of it."""
    return asyncio.run_coroutine_threadsafe(what, loop).result()
