"""The order of steps by which shares on Kubernetes start, change and end.

A scheduler that knows nothing of resizes places claims while cards grow full and empty again. What keeps every card
within eight eighths is the agent's one lock; what keeps scheduler and node from disagreeing for long is the order here,
which is model-checked. Each step that a line of it names is a step of docs/explanation/published-capacity.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuspawner import kubernetes_names as names
from gpuspawner.card import Card
from gpuspawner.errors import Conflict, GPUSpawnerError, InUse, NoRoom, NotFound, Unavailable
from gpuspawner.node.agent import Agent
from gpuspawner.node.dra import cdi, published
from gpuspawner.node.dra.api import ApiError, KubeApi, Object
from gpuspawner.node.dra.claims import (
    Allocation,
    Claims,
    Outcome,
    Prepared,
    Promised,
    Wish,
    allocation,
    wish,
    wish_number,
)
from gpuspawner.node.dra.pods import Pods
from gpuspawner.node.dra.publisher import Publisher
from gpuspawner.node.dra.status import Statuses
from gpuspawner.node.drivers.base import Access
from gpuspawner.node.limits import abi, launch
from gpuspawner.node.records import Record

log = logging.getLogger(__name__)

CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
MANAGER = "gpuspawner-agent"
#: Seconds that a start waits for eighths of sessions that have ended; the kubelet gives a call 45.
WAIT_FOR_HELD = 40.0
_LOOK_AGAIN = 0.1


def claim_path(namespace: str, name: str) -> str:
    """Where the API server has a claim."""
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


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
        self._targets: dict[str, int] = {}
        self._starting: set[str] = set()
        self._claim_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._card_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._statuses = Statuses()
        self.publisher = Publisher(api, node, self.content)

    # -- what is published ---------------------------------------------------------------------------------

    def content(self) -> dict[str, Any]:
        """The slice as it should be now."""
        by_uuid = {card.uuid: name for name, card in self._cards.items()}
        claims = {each.session: each for each in self._claims.all()}
        counts = published.eighths(by_uuid, self._agent.records(), claims, self._targets)
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
                await self._say(_prepared(allocated), refused=_outcome(error))
                raise
            finally:
                self._starting.discard(allocated.session)
        await self._say(prepared)
        return prepared

    async def _start(self, allocated: Allocation, claim: Object) -> Prepared:
        session, cards = allocated.session, tuple(self._card(part.device).uuid for part in allocated.parts)
        record, known = self._record(session), self._claims.get(session)
        if record is not None and record.state == "live" and known is not None:
            prepared = replace(known, pods=allocated.pods)
        else:
            prepared = _prepared(allocated)
        self._remember(prepared)
        user = (claim["metadata"].get("labels") or {}).get(names.USER_LABEL) or allocated.namespace
        try:
            await self._hold(session, user, cards, allocated.parts[0].eighths)
        except GPUSpawnerError:
            if self._record(session) is None:
                self._forget(session)
            raise
        await asyncio.to_thread(self._write_spec, prepared)
        return prepared

    async def _hold(self, session: str, user: str, cards: tuple[str, ...], eighths: int) -> None:
        deadline = asyncio.get_running_loop().time() + self._wait_for_held
        while True:
            record = self._record(session)
            if record is not None and record.state == "live":
                return
            try:
                if record is None:
                    await asyncio.to_thread(self._agent.hold, session, user, cards, eighths)
                    return
            except NoRoom:
                if not self._only_held_in_the_way(cards, eighths) or asyncio.get_running_loop().time() > deadline:
                    raise
            if asyncio.get_running_loop().time() > deadline:
                raise NoRoom("An earlier use of this claim has not given its memory back yet.")
            await asyncio.sleep(_LOOK_AGAIN)

    def _only_held_in_the_way(self, cards: tuple[str, ...], eighths: int) -> bool:
        held = [record for record in self._agent.records() if record.state == "held"]
        free = self._agent.free()
        return all(
            free.get(uuid, 0) + sum(record.charged for record in held if uuid in record.cards) >= eighths
            for uuid in cards
        )

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
        async with self._card_locks[record.cards[0]]:
            await self._answer(session, asked)

    async def _answer(self, session: str, asked: Wish) -> None:
        """With the card's lock held: one grow or shrink of a card at a time."""
        prepared, record = self._claims.get(session), self._record(session)
        if prepared is None or record is None or record.state != "live" or asked.number <= prepared.number:
            return
        try:
            if asked.eighths > record.eighths:
                await self._grow(prepared, asked)
            elif asked.eighths < record.eighths:
                await asyncio.to_thread(
                    self._agent.resize, session, asked.eighths, forced=asked.forced, keep_charged=True
                )
            if asked.burst != record.burst:
                await asyncio.to_thread(self._agent.set_burst, session, asked.burst)
            outcome = Outcome(names.REASON_IN_FORCE, f"Wish {asked.number} is in force.")
        except ApiError:
            raise  # not answered: it is tried again
        except GPUSpawnerError as error:
            outcome = _outcome(error)
        finally:
            self._targets.pop(session, None)
        changed = self._claims.answer(session, asked.number, outcome)
        await self.publisher.publish()
        await self._say(changed)

    async def _grow(self, prepared: Prepared, asked: Wish) -> None:
        self._targets[prepared.session] = asked.eighths
        await self.publisher.publish()
        listed = (await self._api.get(CLAIMS))["items"]
        own = next((each for each in listed if each["metadata"]["uid"] == prepared.uid), None)
        allocated = allocation(own, self._node) if own is not None else None
        if allocated is None or allocated.session != prepared.session:
            raise NotFound("The claim is no longer allocated.", code="ended")

        def promised_to_others() -> int:
            recorded = [record.session for record in self._agent.records()]
            return Promised.of(listed, self._node, recorded).by_device.get(prepared.parts[0].device, 0)

        await asyncio.to_thread(
            self._agent.resize, prepared.session, asked.eighths, reserved=promised_to_others, keep_charged=True
        )

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
            if prepared.session in self._starting or self._claims.get(prepared.session) is None:
                return
            claim = await self._api.find(claim_path(*prepared.key))
            if claim is not None and claim["metadata"]["uid"] == prepared.uid:
                try:
                    allocated = allocation(claim, self._node)
                except GPUSpawnerError:
                    allocated = None
                if allocated is not None and allocated.session == prepared.session:
                    return
            await self._end(prepared.session, "its claim is no longer allocated")

    async def _end(self, session: str, reason: str) -> None:
        await asyncio.to_thread(self._agent.end, session, reason)
        cdi.remove(self._specs, session)
        await self.publisher.publish()
        if self._record(session) is None:
            self._forget(session)

    # -- from time to time ---------------------------------------------------------------------------------

    async def look(self) -> None:
        """One look at sessions and cards: what has become free, who is over the limit, which card has failed."""
        changes = await asyncio.to_thread(self._agent.watch)
        self._learn_cards()
        for prepared in self._claims.all():
            if self._record(prepared.session) is None and prepared.session not in self._starting:
                self._forget(prepared.session)
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
            if error.status not in (404, 409):  # gone, or another by now
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
        return next((record for record in self._agent.records() if record.session == session), None)

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
