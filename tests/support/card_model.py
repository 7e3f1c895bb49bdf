"""One card on a cluster, as small as it can be told: API server, scheduler with caches, kubelet, pods, and a node agent
that follows gpuspawner.protocol, one step of anything at a time.

Each effect of an act is two steps, being done and being answered, so that whatever else may happen in between and the
agent may die there. The agent's memory (book, acts, lock, publisher) dies with it; disk, limits in force, memory in use
and requests on their way to the API server do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuspawner import protocol
from gpuspawner.capacity import Allocation, Charge, Key
from gpuspawner.errors import GPUSpawnerError
from gpuspawner.protocol import (
    Act,
    Apply,
    AwaitRoom,
    Book,
    Cancelled,
    Excess,
    FreeMemory,
    GetAllocation,
    Gone,
    ListAllocations,
    Lock,
    Persist,
    Publish,
    Remove,
    Report,
    ReportRefused,
    Unlock,
)

EMPTY = object()


@dataclass
class Claim:
    """A claim and its pod. `share`: its allocation now. `wishes`: every (eighths, request, forced) that was
    ever written into its annotations, the last being there now. `over`: the pod has ended. `status`: what the node
    reported last."""

    uid: str
    promised: int
    share: str | None = None
    wishes: list[tuple[int, int, bool]] = field(default_factory=list)
    over: bool = False
    prepared: str | None = None
    refused: bool = False
    status: Charge | None = None

    @property
    def key(self) -> Key | None:
        """Its allocation's key."""
        return None if self.share is None else Key(self.uid, self.share)


@dataclass
class Running:
    """An act and where it is: the effect that is to be done next, or its answer."""

    name: str
    act: Act
    claim: Claim | None
    effect: Any = None
    answer: Any = EMPTY
    waits_for: int = 0


class World:
    """Everything. `lag`: how far behind the scheduler's caches may be, in changes of the API server; 0: never."""

    #: What the agent follows. Tests put something broken here.
    rules: Any = protocol

    def __init__(self, lag: int = 0) -> None:
        self.claims: dict[str, Claim] = {}
        self.slice: int | None = None
        self.slice_version = 0
        self.lag = lag
        self._seen: list[tuple[int, dict[Key, int]]] = []
        self.assumed: dict[Key, int] = {}
        self.disk: dict[Key, Charge] = {}
        self.in_force: dict[Key, int] = {}
        self.used: dict[Key, int] = {}
        self.flying: list[tuple[int, int]] = []  # PUTs under way: value, the version that they expect
        self.book: Book | None = None
        self.acts: list[Running] = []
        self.locked_by: Running | None = None
        self.serving = False
        self.wanted = 0  # publications asked for and done, each a number that rises
        self.acknowledged = 0
        self.sending: tuple[int, int, int, frozenset[Key]] | None = None  # number, value, version, the ended ones
        self.has_written = False
        self.first_is_always_sent = True
        self.recorded: set[Key] = set()  # whatever was ever live on disk
        self.end_published: set[Key] = set()  # of those, what the slice does not count any more
        self.unpublished_ends: set[Key] = set()  # deallocated by force before that
        self.refusals = 0
        self.promised_of: dict[Key, int] = {}
        self.note()

    # -- the API server ----------------------------------------------------------------------------------

    def allocations(self) -> dict[Key, int]:
        """Every allocation there is now."""
        return {claim.key: claim.promised for claim in self.claims.values() if claim.key}

    def note(self) -> None:
        """The API server has changed: caches may see this state from now on, or an older one."""
        self._seen = [*self._seen[-self.lag :], (self.slice or 0, self.allocations())] if self.lag else []

    def schedule(self, claim: Claim, slice_age: int, claims_age: int) -> bool:
        """The scheduler, whose caches are so many changes old, allocates a claim if it believes that it fits. It knows
        its own allocations until its cache shows them or the claim without them."""
        now = (self.slice or 0, self.allocations())
        seen = [*self._seen, now]
        capacity = seen[max(0, len(seen) - 1 - slice_age)][0]
        taken = dict(seen[max(0, len(seen) - 1 - claims_age)][1])
        taken.update({key: eighths for key, eighths in self.assumed.items() if key in now[1]})
        if claim.share is not None or claim.over or claim.promised > capacity - sum(taken.values()):
            return False
        claim.share = f"share-{len(self.promised_of)}"
        assert claim.key
        self.assumed[claim.key] = self.promised_of[claim.key] = claim.promised
        self.note()
        return True

    def deallocate(self, claim: Claim) -> None:
        """Take a claim's allocation away."""
        if claim.key and claim.key in self.recorded - self.end_published:
            self.unpublished_ends.add(claim.key)
        claim.share = None
        claim.prepared = None
        self.note()

    def land(self, at: int) -> None:
        """A PUT arrives at the API server, which refuses it if the slice has changed since it was read."""
        value, version = self.flying.pop(at)
        if version == self.slice_version:
            self._write_slice(value)

    def wipe_slice(self) -> None:
        """Somebody deletes the slice."""
        self._write_slice(None)

    def _write_slice(self, value: int | None) -> None:
        self.slice = value
        self.slice_version += 1
        self.note()

    # -- the node ----------------------------------------------------------------------------------------

    def crash(self) -> None:
        """kill -9 of the agent."""
        self.book, self.acts, self.locked_by, self.serving, self.sending = None, [], None, False, None
        self.has_written = False

    def boot(self) -> None:
        """The agent starts: it reads the disk, and the rest is the act `restart`."""
        self.book = Book(dict(self.disk))
        self.begin("restart", self.rules.restart(self.book))

    def begin(self, name: str, act: Act, claim: Claim | None = None) -> None:
        """An act begins; it comes to its first effect."""
        running = Running(name, act, claim)
        self.acts.append(running)
        self._resume(running, None)

    def step(self, running: Running) -> bool:
        """Do the effect of an act, or give it the answer. False where it has to wait."""
        if running.answer is EMPTY:
            done: Callable[[Running, Any], bool] = getattr(self, f"_do_{type(running.effect).__name__.lower()}")
            return done(running, running.effect)
        self._resume(running, running.answer)
        return True

    def _resume(self, running: Running, answer: Any) -> None:
        running.answer = EMPTY
        running.waits_for = 0
        try:
            running.effect = running.act.send(answer)
        except StopIteration:
            self._over(running, None)
        except GPUSpawnerError as error:
            self._over(running, error)

    def _over(self, running: Running, error: GPUSpawnerError | None) -> None:
        self.acts.remove(running)
        claim = running.claim
        assert self.locked_by is not running
        if running.name == "restart":
            self.serving = True
        if claim is not None and running.name == "prepare" and error is None:
            claim.prepared = claim.share
        if claim is not None and running.name == "end":
            claim.prepared = None
            self.deallocate(claim)

    def _answer(self, running: Running, answer: Any = None) -> bool:
        running.answer = answer
        return True

    def _do_lock(self, running: Running, _: Lock) -> bool:
        if self.locked_by is not None:
            return False
        self.locked_by = running
        return self._answer(running)

    def _do_unlock(self, running: Running, _: Unlock) -> bool:
        assert self.locked_by is running
        self.locked_by = None
        return self._answer(running)

    def _do_persist(self, running: Running, effect: Persist) -> bool:
        assert self.locked_by is running
        self._check_answer(effect.charge)
        self.disk[effect.charge.key] = effect.charge
        self.recorded.add(effect.charge.key)
        if effect.charge.key not in self.allocations() and effect.charge.key not in self.end_published:
            self.unpublished_ends.add(effect.charge.key)  # a prepare that came too late
        return self._answer(running)

    def _check_answer(self, new: Charge) -> None:
        """What was answered to a request stays until a later one is answered."""
        old = self.disk.get(new.key)
        if old is None or new.held:
            return
        assert new.request >= old.request, "an older request was answered after a newer one"
        wishes = {wish[1]: wish[0] for wish in self.claims[new.key.claim].wishes}
        expected = old.limit if new.request == old.request or new.refused else wishes.get(new.request)
        assert new.limit == expected, f"{new.limit}/8 in force, and request {new.request} is for {expected}/8"

    def _do_remove(self, running: Running, effect: Remove) -> bool:
        assert self.locked_by is running
        del self.disk[effect.key]
        return self._answer(running)

    def _do_apply(self, running: Running, effect: Apply) -> bool:
        self.in_force[effect.key] = effect.eighths
        return self._answer(running)

    def _do_publish(self, running: Running, _: Publish) -> bool:
        if not running.waits_for:
            self.wanted += 1
            running.waits_for = self.wanted
            return True
        return self._answer(running) if self.acknowledged >= running.waits_for else False

    def publish(self) -> bool:
        """The card's one publisher takes a step: sends what the book says now, or sees what became of it."""
        if self.book is None:
            return False
        if self.sending is None:
            value = self.book.published
            if self.slice == value and (self.has_written or not self.first_is_always_sent):
                changed = self.acknowledged < self.wanted
                self._acknowledge(self.wanted, self._ended())
                return changed
            self.sending = (self.wanted, value, self.slice_version, self._ended())
            self.flying.append((value, self.slice_version))
            return True
        number, value, version, ended = self.sending
        if (value, version) in self.flying:
            return False
        self.sending = None
        if self.slice == value and self.slice_version == version + 1:
            self.has_written = True
            self._acknowledge(number, ended)
        return True

    def _ended(self) -> frozenset[Key]:
        assert self.book is not None
        on_disk = {key for key, charge in self.disk.items() if not charge.held}
        return frozenset(key for key in self.recorded - on_disk if self.book.live(key) is None)

    def _acknowledge(self, number: int, ended: frozenset[Key]) -> None:
        self.acknowledged = number
        self.end_published |= ended
        self.unpublished_ends -= ended

    def _do_listallocations(self, running: Running, _: ListAllocations) -> bool:
        return self._answer(running, [Allocation(key, promised) for key, promised in self.allocations().items()])

    def _do_getallocation(self, running: Running, effect: GetAllocation) -> bool:
        promised = self.allocations().get(effect.key)
        return self._answer(running, None if promised is None else Allocation(effect.key, promised))

    def _do_freememory(self, running: Running, _: FreeMemory) -> bool:
        return self._answer(running)

    def _do_excess(self, running: Running, effect: Excess) -> bool:
        return self._answer(running, max(0, self.used.get(effect.key, 0) - effect.eighths))

    def _do_gone(self, running: Running, effect: Gone) -> bool:
        return self._answer(running, not self.used.get(effect.key))

    def _do_cancelled(self, running: Running, _: Cancelled) -> bool:
        claim = running.claim
        return self._answer(running, claim is not None and claim.over)

    def _do_awaitroom(self, running: Running, _: AwaitRoom) -> bool:
        assert self.book is not None
        held = any(charge.held for charge in self.book.charges.values())
        return self._answer(running, held)

    def _do_report(self, running: Running, effect: Report) -> bool:
        assert self.book is not None
        claim = self.claims.get(effect.key.claim)
        if claim is not None and claim.key == effect.key:
            claim.status = self.book.live(effect.key)
        return self._answer(running)

    def _do_reportrefused(self, running: Running, effect: ReportRefused) -> bool:
        claim = self.claims.get(effect.key.claim)
        self.refusals += 1
        if claim is not None:
            claim.refused = True
        return self._answer(running)

    # -- what the node hears, and what begins with it ------------------------------------------------------

    def busy(self, name: str, claim: Claim | None = None) -> bool:
        """Whether such an act is under way."""
        return any(each.name == name and claim in (None, each.claim) for each in self.acts)

    def kubelet(self, claim: Claim) -> bool:
        """The kubelet has the claim prepared for a pod that is to run, and unprepared for one that is over."""
        if not self.serving or self.busy("prepare", claim) or self.busy("end", claim) or claim.key is None:
            return False
        assert self.book is not None
        if not claim.over and claim.prepared is None and not claim.refused:
            self.begin("prepare", self.rules.prepare(self.book, claim.key), claim)
            return True
        if claim.over:
            self.begin("end", self.rules.end(self.book, claim.key), claim)
            return True
        return False

    def wish(self, claim: Claim, back: int = 0) -> bool:
        """The node sees a claim's annotations, maybe as they were some changes ago."""
        if not self.serving or self.book is None or claim.key is None or not claim.wishes or self.busy("resize"):
            return False
        target, request, forced = claim.wishes[max(0, len(claim.wishes) - 1 - back)]
        self.begin("resize", self.rules.resize(self.book, claim.key, target, request, forced=forced), claim)
        return True

    def tidy(self) -> bool:
        """The node looks after what changed by itself: deallocations, memory of ended ones, forced shrinks."""
        if not self.serving or self.book is None or self.busy("tidy"):
            return False
        allocations = self.allocations()
        for charge in self.book.charges.values():
            if charge.held and not self.used.get(charge.key):
                self.begin("tidy", self.rules.release(self.book, charge.key))
            elif not charge.held and charge.key not in allocations:
                self.begin("tidy", self.rules.deallocated(self.book, charge.key))
            elif charge.charged > charge.limit and not charge.held and self.used.get(charge.key, 0) <= charge.limit:
                self.begin("tidy", self.rules.settle(self.book, charge.key))
            else:
                continue
            return True
        return False

    # -- what must hold ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Never more than eight eighths, nothing in force that is not on disk, and nothing offered that is not free."""
        keys = self.in_force.keys() | self.used.keys()
        for key in keys:
            charge = self.disk.get(key)
            charged = charge.charged if charge else 0
            assert self.in_force.get(key, 0) <= charged, f"{key} has more in force than is on disk"
            assert self.used.get(key, 0) <= charged, f"{key} uses more than is charged"
        assert sum(charge.charged for charge in self.disk.values()) <= 8
        offered = (self.slice or 0) - sum(self.allocations().values())
        offered -= sum(self.promised_of[key] for key in self.unpublished_ends)
        assert offered <= self.free() or offered <= 0, f"{offered} eighths are offered and {self.free()} are free"

    def free(self) -> int:
        """What is neither charged nor promised to somebody who is starting."""
        known = self.disk.keys() | self.recorded
        starting = sum(promised for key, promised in self.allocations().items() if key not in known)
        return 8 - sum(charge.charged for charge in self.disk.values()) - starting

    def quiesce(self) -> None:
        """Everything goes well from now on; ends when nothing happens any more."""
        for _ in range(10_000):
            if not self._anything():
                return
        raise AssertionError(f"it never comes to rest: {self.acts}")

    def _anything(self) -> bool:
        if self.book is None:
            self.boot()
            return True
        if self.flying:
            self.land(0)
            return True
        moved = sum(self.step(act) for act in list(self.acts) if act in self.acts) > 0
        moved |= self.publish()
        if moved:
            return True
        for claim in list(self.claims.values()):
            if claim.over and claim.key is None:
                del self.claims[claim.uid]
                return True
            if claim.refused and not claim.over:
                claim.over = True
                return True
        dead = [key for key in self.used if self.used[key] and not self._lives(key)]
        for key in dead:
            self.used[key] = 0
        return bool(dead) or any(self.kubelet(claim) for claim in self.claims.values()) or self.tidy()

    def _lives(self, key: Key) -> bool:
        claim = self.claims.get(key.claim)
        return claim is not None and claim.key == key and not claim.over
