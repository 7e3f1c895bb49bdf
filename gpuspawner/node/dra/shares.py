"""Shares on Kubernetes: how they start, change and end on one node.

A scheduler that knows nothing of resizes places claims while cards grow full and empty again. What keeps every card
within eight eighths is the agent's one lock; what keeps scheduler and node from disagreeing for long is the order of
steps. It stands in `gpuspawner.protocol`, `acts.py` follows it, and here is what begins its acts: a kubelet's calls,
claims as a watch shows them, and time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gpuspawner import capacity, protocol
from gpuspawner import kubernetes_names as names
from gpuspawner.card import Card
from gpuspawner.errors import Conflict, GPUSpawnerError, InUse, NoRoom, NotFound, Unavailable
from gpuspawner.kubernetes_api import ApiError, KubeApi, Object
from gpuspawner.node.agent import Agent
from gpuspawner.node.dra import cdi, published
from gpuspawner.node.dra.acts import CLAIMS, Acts, Context, claim_path
from gpuspawner.node.dra.claims import Allocation, Claims, Outcome, Prepared, Wish, allocation, wish, wish_number
from gpuspawner.node.dra.pods import Pods
from gpuspawner.node.dra.publisher import Publisher
from gpuspawner.node.dra.status import Statuses
from gpuspawner.node.drivers.base import Access
from gpuspawner.node.limits import abi, launch
from gpuspawner.node.records import Record

log = logging.getLogger(__name__)

MANAGER = "gpuspawner-agent"
#: Seconds that a start waits for eighths of sessions that have ended; the kubelet gives a call 45.
WAIT_FOR_HELD = 40.0


class Shares:
    """The shares of one node. `specs`: the folder of CDI specs. `files`: the driver's libraries as containers are to
    get them; `shims`: what stands before them; `access`: what else a session needs of these cards. `describe` reads
    what is published of cards, `grade_of` says how strongly sessions on one are held.

    All methods run in one event loop; what blocks runs in threads.
    """

    def __init__(
        self,
        agent: Agent,
        claims: Claims,
        pods: Pods,
        api: KubeApi,
        node: str,
        describe: Callable[[list[Card]], list[published.Device]],
        *,
        specs: Path,
        files: launch.DriverFiles,
        shims: Mapping[str, Path],
        access: Callable[[Collection[str]], Access],
        grade_of: Callable[[str], str],
        node_uid: str | None = None,
        wait_for_held: float = WAIT_FOR_HELD,
    ) -> None:
        self._agent = agent
        self._claims = claims
        self._pods = pods
        self._api = api
        self._node = node
        self._node_uid = node_uid
        self._specs = specs
        self._files = files
        self._shims = shims
        self._wait_for_held = wait_for_held
        self._access = access
        self._describe = describe
        self._grade_of = grade_of
        self._cards: dict[str, Card] = {}
        self._devices: dict[str, published.Device] = {}
        self._learn_cards()
        self._acts = Acts(
            agent.hands,
            claims,
            api,
            node,
            cards=lambda: {device: card.uuid for device, card in self._cards.items()},
            publish=lambda: self.publisher.publish(),
            say=self._say,
        )
        self._starting: set[str] = set()
        self._claim_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._card_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._statuses = Statuses()
        self.publisher = Publisher(api, node, self.content)

    # -- what is published ---------------------------------------------------------------------------------

    def content(self) -> dict[str, Any]:
        """The slice as it should be now."""
        counts = {
            uuid: capacity.published(charges.values(), self._acts.growing.get(uuid))
            for uuid, charges in self._acts.charges().items()
        }
        shown = [
            self._devices[name].shown(counts[card.uuid], *self._agent.health_since(card.uuid))
            for name, card in self._cards.items()
        ]
        return published.slice_of(self._node, self._node_uid, shown)

    def _learn_cards(self) -> None:
        """A card may come later than the agent."""
        cards = self._agent.cards()
        if len(cards) != len(self._cards):
            self._devices = {device.name: device for device in self._describe(cards)}
            self._cards = {names.device_name(card.uuid): card for card in cards}

    # -- start ---------------------------------------------------------------------------------------------

    async def prepare(self, namespace: str, name: str, uid: str) -> Prepared:
        """Put a claim's share in force for the pods that use it. Again it changes nothing.

        Raises NoRoom where the card has grown full since the scheduler looked, NotFound, Conflict, InvalidInput.
        """
        async with self._claim_locks[uid]:
            claim = await self._api.find(claim_path(namespace, name))
            if claim is None or claim["metadata"]["uid"] != uid:
                raise NotFound(f"The claim {namespace}/{name} with uid {uid} does not exist any more.")
            allocated = allocation(claim, self._node)
            if allocated is None:
                raise Conflict(f"The claim {namespace}/{name} is not allocated on node {self._node}.")
            for older in self._claims.of_uid(uid):
                if older.session != allocated.session:
                    await self._end(older.session, "its claim was allocated anew")
            self._starting.add(allocated.session)
            try:
                prepared = await self._start(allocated, claim)
            except GPUSpawnerError as error:
                await self._say(_prepared(allocated), _outcome(error))
                raise
            finally:
                self._starting.discard(allocated.session)
        return prepared

    async def _start(self, allocated: Allocation, claim: Object) -> Prepared:
        session, cards = allocated.session, tuple(self._card(part.device).uuid for part in allocated.parts)
        record, known = self._record(session), self._claims.get(session)
        if record is not None and record.state == "live" and known is not None:
            prepared = replace(known, pods=allocated.pods)
        else:
            prepared = _prepared(allocated)
            await asyncio.to_thread(self._agent.hands.check_start, cards, allocated.parts[0].eighths)
        self._remember(prepared)
        user = (claim["metadata"].get("labels") or {}).get(names.USER_LABEL) or allocated.namespace
        try:
            for part, card in zip(allocated.parts, cards, strict=True):
                context = Context(prepared, part, card, user=user, wait=self._wait_for_held, first=claim)
                await self._acts.run(partial(protocol.prepare, key=context.key), context)
        except GPUSpawnerError:
            if len(cards) > 1 and self._record(session) is not None:
                await self._end(session, "not all of its cards were free")
            if self._record(session) is None:
                self._forget(session)
            raise
        await asyncio.to_thread(self._write_spec, prepared)
        return prepared

    def _write_spec(self, prepared: Prepared) -> None:
        folder = self._agent.folder_of(prepared.session)
        usage = launch.usage_path(folder)
        if not usage.exists():
            usage.parent.mkdir(mode=0o755, exist_ok=True)
            abi.create_usage(usage, None, None)
            # Whoever the container runs as; nobody else can reach it.
            usage.chmod(0o666)
        visible = self._agent.visible(prepared.session)
        access = self._access([self._card(part.device).uuid for part in prepared.parts])
        cdi.write(self._specs, prepared, cdi.spec(prepared, folder, self._files, self._shims, visible, access))

    # -- change --------------------------------------------------------------------------------------------

    async def follow(self, claim: Object) -> None:
        """Look at a claim as a watch showed it: its pods, its wish, whether it is still allocated."""
        uid = claim["metadata"]["uid"]
        known = self._claims.of_uid(uid)
        if not known:
            return
        try:
            allocated = allocation(claim, self._node)
        except GPUSpawnerError:
            allocated = None
        for prepared in known:
            if allocated is None or allocated.session != prepared.session:
                await self.confirm_end(prepared)
            else:
                if allocated.pods != prepared.pods:
                    self._remember(replace(prepared, pods=allocated.pods))
                await self._serve(prepared.session, claim)

    async def _serve(self, session: str, claim: Object) -> None:
        asked, number = wish(claim), wish_number(claim)
        prepared, record = self._claims.get(session), self._record(session)
        if asked is None or prepared is None or record is None or record.state != "live":
            return
        if isinstance(asked, Outcome):
            if number > prepared.number or (number == 0 and prepared.outcome != asked):
                await self._say(self._claims.answer(session, max(number, prepared.number), asked))
            return
        if asked.number <= prepared.number:
            return
        async with self._card_locks[record.cards[0]]:  # one grow or shrink of a card at a time
            await self._answer(prepared, record.cards[0], asked)

    async def _answer(self, prepared: Prepared, card: str, asked: Wish) -> None:
        session, hands = prepared.session, self._agent.hands
        try:
            await asyncio.to_thread(hands.check_resize, session, asked.eighths)
        except GPUSpawnerError as error:
            await self._say(self._claims.answer(session, asked.number, _outcome(error)))
            return
        context = Context(prepared, prepared.parts[0], card)
        await self._acts.run(
            lambda book: protocol.resize(book, context.key, asked.eighths, asked.number, forced=asked.forced), context
        )
        await asyncio.to_thread(self._set_burst, session, asked.burst)

    def _set_burst(self, session: str, burst: bool) -> None:
        with self._agent.hands.lock:
            self._agent.hands.set_burst(session, burst)

    # -- end -----------------------------------------------------------------------------------------------

    async def unprepare(self, uid: str) -> None:
        """Nobody on this node uses the claim any more. An unknown claim is no error."""
        async with self._claim_locks[uid]:
            for prepared in self._claims.of_uid(uid):
                await self._end(prepared.session, "its pod has ended")
            # Also where nothing was known: what is published then is not older than the answer.
            await self.publisher.publish()

    async def confirm_end(self, prepared: Prepared) -> None:
        """A watch says that an allocation is gone, and watches may be late: ask the store itself."""
        async with self._claim_locks[prepared.uid]:
            if self._claims.get(prepared.session) is not None:
                await self._end(prepared.session, "its claim is no longer allocated", protocol.deallocated)

    async def _end(self, session: str, reason: str, act: Callable[..., protocol.Act] = protocol.end) -> None:
        prepared = self._claims.get(session)
        for part in prepared.parts if prepared else ():
            assert prepared is not None
            context = Context(prepared, part, self._card(part.device).uuid)
            await self._acts.run(partial(act, key=context.key), context)
        record = self._record(session)
        if record is None or record.state == "held":
            log.info("session %s has ended: %s", session, reason)
            cdi.remove(self._specs, session)
        if record is None:
            self._forget(session)

    # -- from time to time ---------------------------------------------------------------------------------

    async def look(self) -> None:
        """One look at sessions and cards: what has become free, who is over the limit, which card has failed."""
        changes = await asyncio.to_thread(self._agent.watch)
        self._learn_cards()
        for prepared in self._claims.all():
            record = self._record(prepared.session)
            if record is None and prepared.session not in self._starting:
                self._forget(prepared.session)
            elif record is not None and record.over:
                context = Context(prepared, prepared.parts[0], record.cards[0])
                await self._acts.run(partial(protocol.settle, key=context.key), context)
        await self.publisher.publish()
        for session in {change.session for change in changes if change.what in ("ended", "freed")}:
            known = self._claims.get(session)
            if known is not None:
                await self._say(known)

    async def restart(self) -> None:
        """After a start of the agent: what ended meanwhile ends now, everything is published and said anew."""
        listed = (await self._api.get(CLAIMS))["items"]
        allocated: dict[str, tuple[Allocation, Object]] = {}
        for claim in listed:
            try:
                found = allocation(claim, self._node)
            except GPUSpawnerError:
                continue
            if found is not None:
                allocated[found.session] = (found, claim)
        for record in self._agent.records():
            known = self._claims.get(record.session)
            if known is None and record.session in allocated and record.state == "live":
                self._adopt(*allocated[record.session])
            elif known is not None:
                self._remember(known)
            if record.session not in allocated and record.state == "live":
                await asyncio.to_thread(self._agent.end, record.session, "its claim is no longer allocated")
        live = {record.session for record in self._agent.records() if record.state == "live"}
        for session in cdi.sessions(self._specs) - live:
            cdi.remove(self._specs, session)
        for prepared in self._claims.all():
            if self._record(prepared.session) is None:
                self._forget(prepared.session)
            elif prepared.session in live:
                await asyncio.to_thread(self._write_spec, prepared)
        await self.publisher.publish()
        for prepared in self._claims.all():
            await self._say(prepared)

    def _adopt(self, allocated: Allocation, claim: Object) -> None:
        """The claims' store was lost: what the claim itself says is taken up again."""
        said = [each for each in claim["status"].get("devices") or [] if each["driver"] == names.DRIVER]
        number = max((int(each.get("data", {}).get(names.DATA_REQUEST) or 0) for each in said), default=0)
        self._remember(replace(_prepared(allocated), number=number))

    # -- the rest ------------------------------------------------------------------------------------------

    async def _say(self, prepared: Prepared, refused: Outcome | None = None) -> None:
        """Write a claim's status; `refused`: why it is not in force. What fails is said at the next change or start."""
        record = self._record(prepared.session)
        content = self._statuses.content(prepared, record, self._cards, self._grade_of, refused)
        try:
            await self._api.apply(f"{claim_path(*prepared.key)}/status", content, MANAGER)
        except ApiError as error:
            if error.answered not in (404, 409):  # gone, or another by now
                log.warning("the status of claim %s/%s was not written: %s", *prepared.key, error)

    def _remember(self, prepared: Prepared) -> None:
        self._claims.put(prepared)
        self._pods.use(prepared.session, prepared.pods)

    def _forget(self, session: str) -> None:
        self._claims.remove(session)
        self._pods.forget(session)
        self._statuses.forget(session)
        cdi.remove(self._specs, session)

    def _record(self, session: str) -> Record | None:
        return self._agent.hands.record(session)

    def _card(self, device: str) -> Card:
        card = self._cards.get(device)
        if card is None:
            raise NotFound(f"There is no card {device} on node {self._node}.", field="device", given=device)
        return card

    def knows(self, uid: str) -> bool:
        """Whether a claim is prepared here."""
        return bool(self._claims.of_uid(uid))

    def known(self) -> Mapping[tuple[str, str], Prepared]:
        """What is prepared, by namespace and name."""
        return {each.key: each for each in self._claims.all()}


def _prepared(allocated: Allocation) -> Prepared:
    return Prepared(
        allocated.session, allocated.namespace, allocated.name, allocated.uid, allocated.parts, allocated.pods
    )


def _outcome(error: GPUSpawnerError) -> Outcome:
    need = error.extra.get("need_to_free_bytes")
    return Outcome(_reason(error), error.message, need if isinstance(need, int) else None)


def _reason(error: GPUSpawnerError) -> str:
    """The condition's reason for what the agent raised."""
    if error.code == "card_failed":
        return names.REASON_CARD_FAILED
    if error.code in ("not_resizable", "resize_needs_restart"):
        return names.REASON_NOT_RESIZABLE
    if error.code == "ended":
        return names.REASON_ENDED
    if isinstance(error, NoRoom):
        return names.REASON_NO_ROOM
    if isinstance(error, InUse):
        return names.REASON_IN_USE
    if isinstance(error, Unavailable):
        return names.REASON_UNAVAILABLE
    return names.REASON_NOT_RESIZABLE if isinstance(error, Conflict) else names.REASON_INVALID
