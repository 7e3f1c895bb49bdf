"""The order of steps in which a node changes what its card gives, on a cluster. Pure: each act is a generator that
yields what is to be done next, and whoever drives it does that and sends back what came of it. So the order stands in
one place, the node agent follows it, and tests stop it at every step.

A driver must do each effect to its end before it asks for the next one. Where one fails, it throws the error into the
generator. Where a call is cancelled, or the process dies, it just stops: every prefix of every act is safe. A lock
that is held then is the driver's to release, after a crash there is none.

Why in this order: apply before persist on a raise, a list from a cache or from before the publication, an answer to
unprepare before the publication, a missing request number, each break the limit or the sums. The tests in
`tests/unit/test_protocol.py` break them on purpose and see it noticed.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

from gpuspawner.capacity import Allocation, Charge, Key, Refusal, check_grow, published, start
from gpuspawner.errors import Conflict, GPUSpawnerError, NoRoom, NotFound


@dataclass
class Book:
    """A card's charges as they are on disk, and the targets of its grows under way, which are in memory alone."""

    charges: dict[Key, Charge] = field(default_factory=dict)
    growing: dict[Key, int] = field(default_factory=dict)

    @property
    def published(self) -> int:
        """What the card is to publish now."""
        return published(self.charges.values(), self.growing)

    def live(self, key: Key) -> Charge | None:
        """The charge of an allocation that has not ended."""
        charge = self.charges.get(key)
        return None if charge is None or charge.held else charge


@dataclass(frozen=True, slots=True)
class Lock:
    """Take the card's lock. Whoever has it may change the book; publishing and listing are done without it."""


@dataclass(frozen=True, slots=True)
class Unlock:
    """Give the card's lock back."""


@dataclass(frozen=True, slots=True)
class Persist:
    """Write a charge to disk; the effect is done when it would survive a loss of power."""

    charge: Charge


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a charge from disk, in the same way."""

    key: Key


@dataclass(frozen=True, slots=True)
class Apply:
    """Put a limit in force for the allocation's processes: its limit file and what else enforces it, and where it is
    new its CDI specification. Harmless when repeated."""

    key: Key
    eighths: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Have the card's slice say `book.published`, computed when it is sent and by one sender for each card, and await
    the API server's word. Nothing is sent where it says so already, but for the first time after a start: a PUT of the
    last life may still be on its way, and only another one with the same resourceVersion keeps it from arriving."""


@dataclass(frozen=True, slots=True)
class ListAllocations:
    """Every allocation of the card, by a list from the API server itself (no resourceVersion). -> list[Allocation]"""


@dataclass(frozen=True, slots=True)
class GetAllocation:
    """One allocation, in the same way; None where the claim is gone, not allocated, allocated anew, or meant for
    administration (adminAccess). -> Allocation | None"""

    key: Key


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Ask the session's programs to free what they keep beyond `eighths`. Whether they do is seen afterwards."""

    key: Key
    eighths: int


@dataclass(frozen=True, slots=True)
class Excess:
    """Bytes that the driver shows in use beyond `eighths`; 0: it fits. None where the driver does not say.
    -> int | None"""

    key: Key
    eighths: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Whether the driver shows none of the allocation's memory left, and no process of it. -> bool"""

    key: Key


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Whether whoever called does not wait for the answer any more. -> bool"""


@dataclass(frozen=True, slots=True)
class AwaitRoom:
    """Wait until memory of an ended session was freed. False where the call's time is over. -> bool"""


@dataclass(frozen=True, slots=True)
class Report:
    """Write the charge as it is then into the claim's status. Need not be awaited; repeated until it is there."""

    key: Key


@dataclass(frozen=True, slots=True)
class ReportRefused:
    """Write into the claim's status that its allocation was refused; what uses it can only be placed again."""

    key: Key
    refusal: Refusal


Effect = (
    Lock
    | Unlock
    | Persist
    | Remove
    | Apply
    | Publish
    | ListAllocations
    | GetAllocation
    | FreeMemory
    | Excess
    | Gone
    | Cancelled
    | AwaitRoom
    | Report
    | ReportRefused
)
Act = Generator[Effect, Any, None]


def prepare(book: Book, key: Key) -> Act:
    """A pod with this allocation is about to start. Repeating it changes nothing.

    Raises NotFound where the allocation is not there (any more), Conflict where it has ended, NoRoom.
    """
    while True:
        allocation: Allocation | None = yield GetAllocation(key)
        if allocation is None or allocation.promised < 1:
            raise NotFound("The claim is not allocated in that way any more.", field="claim", given=key.claim)
        yield Lock()
        if (yield Cancelled()):
            yield Unlock()
            return
        known = book.charges.get(key)
        if known is None:
            verdict = start(book.charges.values(), allocation.promised)
            if verdict == "fits":
                known = Charge(key, allocation.promised, allocation.promised, allocation.promised)
                yield from _persist(book, known)
        if known is not None and not known.held:
            yield Apply(key, known.limit)  # what it has by now, and not again what it was promised
            yield Unlock()
            yield Report(key)
            return
        yield Unlock()
        if known is not None:
            raise Conflict("The claim's use of this card has ended.", field="claim", given=key.claim)
        if verdict == "refused" or not (yield AwaitRoom()):
            refusal = NoRoom("Others have taken the eighths that the scheduler saw free; it has to be placed again.")
            yield ReportRefused(key, Refusal(refusal.code, refusal.message))
            raise refusal


def resize(book: Book, key: Key, target: int, request: int, *, forced: bool = False) -> Act:
    """Request number `request` wants `target` eighths in force. One for each card at a time. Requests that are not
    newer than the last one answered are only answered again. The outcome is the charge's; a refusal raises nothing."""
    now = book.live(key)
    if now is None:
        return
    if request <= now.request:
        yield Report(key)
    elif target == now.charged == now.limit:
        yield Lock()
        if (now := _still_open(book, key, request)) is not None:
            yield from _persist(book, replace(now, request=request, refused=None))
        yield Unlock()
        yield Report(key)
    elif target > now.limit:
        yield from _grow(book, now, target, request)
    else:
        yield from _shrink(book, key, target, request, forced)


def _grow(book: Book, before: Charge, target: int, request: int) -> Act:
    key = before.key
    refusal = _no_room(book, key, target, [])
    allocated: list[Allocation] = []
    try:
        if refusal is None:
            book.growing[key] = target
            yield Publish()
            allocated = yield ListAllocations()
        yield Lock()
        now = _still_open(book, key, request)
        if now is not None and refusal is None:
            if all(each.key != key for each in allocated):
                now = None  # deallocated: its end is on the way
            else:
                refusal = _no_room(book, key, target, allocated)
        if now is not None and refusal is None:
            granted = replace(now, limit=target, charged=max(now.charged, target), request=request, refused=None)
            yield from _persist(book, granted)
            try:
                yield Apply(key, target)
            except GPUSpawnerError as error:
                refusal = Refusal(error.code, error.message)
                yield Apply(key, now.limit)
        if now is not None and refusal is not None:
            yield from _persist(book, replace(now, request=request, refused=refusal))
        yield Unlock()
    finally:
        published_it = book.growing.pop(key, None) is not None
    if published_it:
        yield Publish()
    yield Report(key)


def _shrink(book: Book, key: Key, target: int, request: int, forced: bool) -> Act:
    yield FreeMemory(key, target)
    yield Lock()
    now = _still_open(book, key, request)
    if now is None:
        yield Unlock()
        return
    yield Apply(key, target)
    excess: int | None = yield Excess(key, target)
    if forced:
        charged = target if excess == 0 else now.charged
        yield from _persist(book, replace(now, limit=target, charged=charged, request=request, refused=None))
    elif excess == 0:
        yield from _persist(book, replace(now, limit=target, charged=target, request=request, refused=None))
    else:
        yield Apply(key, now.limit)
        yield from _persist(book, replace(now, request=request, refused=_in_use(excess)))
    yield Unlock()
    yield Publish()
    yield Report(key)


def settle(book: Book, key: Key) -> Act:
    """A forced shrink left more in use than the limit: charge less once that has been freed."""
    yield Lock()
    now = book.live(key)
    if now is not None and now.charged > now.limit and (yield Excess(key, now.limit)) == 0:
        yield from _persist(book, replace(now, charged=now.limit))
    yield Unlock()
    yield Publish()


def end(book: Book, key: Key) -> Act:
    """The allocation's use ends: its pod is over (unprepare). Answer only after it; for an unknown one too."""
    yield from _hold(book, key)
    yield Publish()


def deallocated(book: Book, key: Key) -> Act:
    """The claim was seen without this allocation: unprepare may be lost, and a cache may be wrong."""
    if (yield GetAllocation(key)) is None:
        yield from end(book, key)


def release(book: Book, key: Key) -> Act:
    """An ended allocation is free when the driver shows nothing of it."""
    yield Lock()
    charge = book.charges.get(key)
    if charge is not None and charge.held and (yield Gone(key)):
        yield Remove(key)
        del book.charges[key]
    yield Unlock()
    yield Publish()


def restart(book: Book) -> Act:
    """The agent has started, owns its folder and has loaded the book. Serve only after it."""
    for charge in list(book.charges.values()):
        yield Apply(charge.key, charge.limit)
    allocated = {each.key for each in (yield ListAllocations())}
    for charge in list(book.charges.values()):
        if not charge.held and charge.key not in allocated:
            yield from _hold(book, charge.key)
    yield Publish()
    for charge in list(book.charges.values()):
        if not charge.held:
            yield Report(charge.key)


def _hold(book: Book, key: Key) -> Act:
    yield Lock()
    charge = book.live(key)
    if charge is not None:
        yield Apply(key, 0)
        if (yield Gone(key)):
            yield Remove(key)
            del book.charges[key]
        else:
            yield from _persist(book, replace(charge, limit=0, held=True))
    yield Unlock()


def _persist(book: Book, charge: Charge) -> Act:
    yield Persist(charge)
    book.charges[charge.key] = charge


def _still_open(book: Book, key: Key, request: int) -> Charge | None:
    """The live charge if the request is not answered yet."""
    now = book.live(key)
    return None if now is None or request <= now.request else now


def _no_room(book: Book, key: Key, target: int, allocated: list[Allocation]) -> Refusal | None:
    try:
        check_grow(book.charges.values(), key, target, allocated)
    except NoRoom as error:
        return Refusal(error.code, error.message)
    return None


def _in_use(excess: int | None) -> Refusal:
    if excess is None:
        return Refusal("unavailable", "The driver does not say how much of the card's memory is in use.")
    return Refusal("in_use", f"{excess} bytes of the card's memory have to be freed first.", excess)
