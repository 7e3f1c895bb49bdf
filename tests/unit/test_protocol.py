"""The order of steps on a card, against a model of everything around it: stale caches, late writes, crashes."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from support.card_model import Claim, World

from gpuspawner import protocol
from gpuspawner.capacity import Allocation
from gpuspawner.share import FRACTIONS

EXAMPLES = int(os.environ.get("GPUSPAWNER_PROTOCOL_EXAMPLES", "40"))
pick = st.integers(0, 11)


class Card(RuleBasedStateMachine):
    """Whatever may happen to a card and its claims, one small step at a time. Scheduler and node see old states."""

    lag = 4
    world_class: type[World] = World

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        """A new world."""
        self.world = self.world_class(self.lag)
        self.world.boot()

    def chosen(self, at: int) -> Claim | None:
        claims = list(self.world.claims.values())
        return claims[at % len(claims)] if claims else None

    @precondition(lambda self: len(self.world.claims) < 4)
    @rule(promised=st.sampled_from(FRACTIONS))
    def create(self, promised: int) -> None:
        uid = f"claim-{len(self.world.promised_of)}-{len(self.world.claims)}-{self.world.wanted}"
        self.world.claims[uid] = Claim(uid, promised)

    @rule(at=pick, slice_age=st.integers(0, 4), claims_age=st.integers(0, 4))
    def schedule(self, at: int, slice_age: int, claims_age: int) -> None:
        if claim := self.chosen(at):
            self.world.schedule(claim, min(slice_age, self.lag), min(claims_age, self.lag))

    @rule(at=pick)
    def kubelet(self, at: int) -> None:
        if claim := self.chosen(at):
            self.world.kubelet(claim)

    @rule(at=pick, eighths=st.sampled_from(FRACTIONS), forced=st.booleans())
    def write_wish(self, at: int, eighths: int, forced: bool) -> None:
        """A service, one of maybe two, writes what is wanted: with the number after the last, by compare and swap."""
        if claim := self.chosen(at):
            claim.wishes.append((eighths, len(claim.wishes) + 1, forced))

    @rule(at=pick, back=st.integers(0, 3))
    def see_wish(self, at: int, back: int) -> None:
        if claim := self.chosen(at):
            self.world.wish(claim, back)

    @rule(at=pick, times=st.integers(1, 8))
    def step(self, at: int, times: int) -> None:
        for _ in range(times):
            if self.world.acts:
                self.world.step(self.world.acts[at % len(self.world.acts)])
                self.world.check()

    @rule(times=st.integers(1, 3))
    def publish(self, times: int) -> None:
        for _ in range(times):
            self.world.publish()

    @rule(at=pick)
    def land(self, at: int) -> None:
        if self.world.flying:
            self.world.land(at % len(self.world.flying))

    @rule(at=pick)
    def use_all(self, at: int) -> None:
        """The programs of a running pod allocate all that they may."""
        claim = self.chosen(at)
        if claim and claim.key and claim.prepared and not claim.over:
            allowed = self.world.in_force.get(claim.key, 0)
            self.world.used[claim.key] = max(allowed, self.world.used.get(claim.key, 0))

    @rule(at=pick, left=st.integers(0, 4))
    def free(self, at: int, left: int) -> None:
        keys = list(self.world.used)
        if keys:
            key = keys[at % len(keys)]
            self.world.used[key] = min(left, self.world.used[key])

    @rule(at=pick)
    def pod_ends(self, at: int) -> None:
        if claim := self.chosen(at):
            claim.over = True

    @rule()
    def tidy(self) -> None:
        self.world.tidy()

    @rule()
    def settle_down(self) -> None:
        """A stretch in which all goes well, so that runs get somewhere."""
        for _ in range(60):
            self.world._anything()
            self.world.check()

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        world = self.world
        world.check()
        world.quiesce()
        world.check()
        book = world.book
        assert book is not None
        assert book.charges == world.disk
        assert world.slice == book.published, "what is published is the rule"
        assert not book.growing
        for key, charge in world.disk.items():
            assert not charge.held, "what has ended is free when its memory is"
            assert world.in_force[key] == charge.limit
            assert world.claims[key.claim].key == key, "no record without its allocation"
        for claim in world.claims.values():
            assert claim.over or claim.key is None or claim.key in world.disk, "every pod on the card has its share"


class Faulty(Card):
    """With crashes, pods deleted by force, and slices deleted by hand."""

    @rule()
    def crash(self) -> None:
        self.world.crash()

    @precondition(lambda self: self.world.book is None)
    @rule()
    def boot(self) -> None:
        self.world.boot()

    @rule(at=pick)
    def delete_by_force(self, at: int) -> None:
        """The claim is deallocated while its processes live; unprepare comes later or never."""
        claim = self.chosen(at)
        if claim and claim.key and not self.world.busy("end", claim):
            claim.over = True
            self.world.deallocate(claim)

    @rule()
    def wipe(self) -> None:
        self.world.wipe_slice()


class Fresh(Card):
    """Caches are never stale: then the card never has to refuse what the scheduler has placed."""

    lag = 0

    @invariant()
    def nothing_is_refused(self) -> None:
        assert self.world.refusals == 0
        assert self.world.free() >= 0


@pytest.mark.parametrize("machine", [Card, Faulty, Fresh])
def test_never_more_than_the_card_and_in_the_end_all_is_as_the_rule_says(machine: type[Card]) -> None:
    everything = list(HealthCheck)
    chosen = settings(max_examples=EXAMPLES, stateful_step_count=60, deadline=None, suppress_health_check=everything)
    run_state_machine_as_test(machine, settings=chosen)


class Hasty(World):
    """Publications are answered before the API server has them."""

    def _do_publish(self, running: Any, _: Any) -> bool:
        self.wanted += 1
        return self._answer(running)


class Cached(World):
    """Lists are answered as things were when the act began."""

    def begin(self, name: str, act: Any, claim: Claim | None = None) -> None:
        self.before = self.allocations()
        super().begin(name, act, claim)

    def _do_listallocations(self, running: Any, _: Any) -> bool:
        found = self.before if running.name == "resize" else self.allocations()
        return self._answer(running, [Allocation(key, promised) for key, promised in found.items()])


#: Texts of protocol.py and what they are broken to.
BROKEN = {
    "a raise in force before it is on disk": {
        "            yield from _persist(book, granted)\n            try:\n": "            yield Apply(key, target)\n"
        "            yield from _persist(book, granted)\n            try:\n",
    },
    "no look at what starts": {"refusal = _no_room(book, key, target, allocated)": "refusal = None"},
    "a shrink is charged less while more is in use": {"target if excess == 0 else now.charged": "target"},
    "an old wish counts": {
        "if request <= now.request:": "if False:",
        "now is None or request <= now.request else": "now is None else",
    },
    "a second prepare gives what was promised": {
        "if known is None:\n            verdict": "if True:\n            verdict"
    },
    "an end is answered before it is published": {"_hold(book, key)\n    yield Publish()": "_hold(book, key)"},
    "what has ended is free at once": {
        "if (yield Gone(key)):\n            yield Remove": "if True:\n            yield Remove"
    },
    "nobody takes notice of deallocations": {
        "if not charge.held and charge.key not in allocated:": "if False:",
        "if (yield GetAllocation(key)) is None:": "if (yield GetAllocation(key)) is False:",
    },
}


def broken(texts: dict[str, str]) -> ModuleType:
    source = Path(protocol.__file__).read_text()
    for old, new in texts.items():
        assert old in source
        source = source.replace(old, new)
    module = ModuleType("broken_protocol")
    sys.modules["broken_protocol"] = module
    exec(compile(source, "broken_protocol.py", "exec"), module.__dict__)
    return module


def walk(machine: Card, seed: int, steps: int = 80) -> None:
    """A life of a card by chance: as hypothesis does it, much faster, without looking for the shortest one."""
    machine.begin()
    chance = random.Random(seed)

    def shares() -> int:
        return chance.choice(FRACTIONS)

    def at() -> int:
        return chance.randrange(12)

    def rarely(act: Callable[[], None]) -> Callable[[], None]:
        return lambda: act() if chance.random() < 0.3 else None

    acts: list[Callable[[], None]] = [
        lambda: machine.create(shares()) if len(machine.world.claims) < 4 else None,
        *3 * [lambda: machine.schedule(at(), chance.randrange(5), chance.randrange(5))],
        *3 * [lambda: machine.kubelet(at())],
        *2 * [lambda: machine.write_wish(at(), shares(), chance.random() < 0.5)],
        *2 * [lambda: machine.see_wish(at(), chance.randrange(4))],
        *8 * [lambda: machine.step(at(), chance.randrange(1, 9))],
        *4 * [lambda: machine.publish(chance.randrange(1, 4))],
        *4 * [lambda: machine.land(at())],
        lambda: machine.use_all(at()),
        lambda: machine.free(at(), chance.randrange(5)),
        rarely(lambda: machine.pod_ends(at())),
        lambda: machine.tidy(),
        rarely(machine.settle_down),
    ]
    if isinstance(machine, Faulty):
        acts += [
            rarely(machine.crash),
            *2 * [lambda: machine.boot() if machine.world.book is None else None],
            rarely(lambda: machine.delete_by_force(at())),
            rarely(machine.wipe),
        ]
    for _ in range(steps):
        chance.choice(acts)()
        machine.world.check()
        if isinstance(machine, Fresh):
            machine.nothing_is_refused()
    machine.teardown()


WALKS = int(os.environ.get("GPUSPAWNER_PROTOCOL_WALKS", "600"))


@pytest.mark.parametrize("machine", [Card, Faulty, Fresh])
def test_lives_by_chance(machine: type[Card]) -> None:
    one = machine()
    for seed in range(WALKS):
        walk(one, seed)


def finds_fault(world: type[World]) -> int:
    """The first of the lives that shows that something is broken."""
    machines = [type("Broken", (machine,), {"world_class": world})() for machine in (Fresh, Faulty)]
    for seed in range(6000):
        for machine in machines:
            try:
                walk(machine, seed)
            except (AssertionError, KeyError, ValueError):
                return seed
    raise AssertionError("nobody noticed")


@pytest.mark.parametrize("world", [Hasty, Cached])
def test_an_api_used_otherwise_is_noticed(world: type[World]) -> None:
    finds_fault(world)


@pytest.mark.parametrize("what", BROKEN)
def test_another_order_of_steps_is_noticed(what: str) -> None:
    finds_fault(type("Broken", (World,), {"rules": broken(BROKEN[what])}))


@pytest.mark.parametrize("always_sent", [True, False])
def test_a_put_of_the_last_life_arrives_late(always_sent: bool) -> None:
    """It would say what was free before an end, had the new life not written first."""
    world = World()
    world.first_is_always_sent = always_sent
    world.boot()
    world.quiesce()
    claim = world.claims["a"] = Claim("a", 4)
    assert world.schedule(claim, 0, 0)
    world.quiesce()
    for wish in ((8, 1, False), (4, 2, False)):
        claim.wishes.append(wish)
        world.wish(claim)
        while world.acts and not (wish[1] == 2 and world.flying):
            world.step(world.acts[0])
            world.publish()
            if world.flying and wish[1] == 1:
                world.land(0)
    assert (world.slice, world.flying[0][0]) == (4, 8)
    assert claim.key
    world.used[claim.key] = 4
    claim.over = True
    world.kubelet(claim)
    ending = next(act for act in world.acts if act.name == "end")
    while type(ending.effect).__name__ != "Publish":
        world.step(ending)
        world.step(world.acts[0])
    world.crash()
    late = world.flying.pop()
    world.boot()
    for _ in range(100):  # all goes well but for the late one, and the memory of the ended pod
        if not (any(world.step(act) for act in world.acts[:1]) | world.publish()):
            if world.flying:
                world.land(0)
            elif not world.kubelet(claim):
                break
    assert claim.key is None
    world.flying.append(late)
    world.land(0)
    assert world.slice == (4 if always_sent else 8)
    if always_sent:
        world.check()
    else:
        with pytest.raises(AssertionError, match="8 eighths are offered and 4 are free"):
            world.check()
