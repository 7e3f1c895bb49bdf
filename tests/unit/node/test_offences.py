"""What a user did counts for an hour, on that card, in whichever session."""

from __future__ import annotations

import pytest

from gpuspawner.node.offences import REMEMBERED, TOLD_AGAIN, Notice, Offences

ENDED = Notice("process_ended", "Process 1 was ended.", 5.0)


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.offences = Offences(lambda: self.now)

    def grace(self, user: str, card: str) -> float:
        return self.offences.of(user, card).grace(30.0)


@pytest.fixture
def world() -> World:
    return World()


def test_grace_is_one_for_a_user_and_card(world: World) -> None:
    world.offences.spend("ann", "GPU-1", 12.0)
    world.offences.spend("ann", "GPU-1", 3.0)
    world.offences.forget([])  # all sessions have ended
    assert [world.grace(*key) for key in (("ann", "GPU-1"), ("ann", "GPU-2"), ("bob", "GPU-1"))] == [15.0, 30.0, 30.0]
    world.now += 100
    world.offences.spend("ann", "GPU-1", 20.0)
    assert world.grace("ann", "GPU-1") == 0.0
    world.now += REMEMBERED - 100 + 1
    world.offences.forget([])
    assert world.grace("ann", "GPU-1") == 10.0, "the older part is forgotten"


def test_what_is_given_back_is_the_last(world: World) -> None:
    for seconds in (5.0, 10.0):
        world.offences.spend("ann", "GPU-1", seconds)
        world.now += 100
    past = world.offences.of("ann", "GPU-1")
    past.give_back(12.0)
    assert world.grace("ann", "GPU-1") == 27.0
    past.give_back(100.0)
    assert world.grace("ann", "GPU-1") == 30.0


def test_after_an_end_there_is_no_grace_and_only_its_session_is_told(world: World) -> None:
    assert world.offences.ended("ann", "GPU-1", ENDED, "s") == 1
    assert world.offences.ended("ann", "GPU-1", ENDED, "t") == 2
    assert world.grace("ann", "GPU-1") == 0.0
    assert world.offences.notices("s") == [ENDED]
    assert world.offences.notices("u") == []
    world.offences.forget(["s"])
    assert world.offences.notices("t") == []
    world.now += REMEMBERED + 1
    world.offences.forget(["s"])
    assert (world.offences.notices("s"), world.grace("ann", "GPU-1")) == ([], 30.0)


def test_the_ledger_hears_of_each_session_once_in_a_while(world: World) -> None:
    assert [world.offences.to_tell("s", "GPU-1") for _ in range(2)] == [True, False]
    assert world.offences.to_tell("t", "GPU-1")
    world.now += TOLD_AGAIN
    assert world.offences.to_tell("s", "GPU-1")
    world.offences.forget([])
    assert world.offences.to_tell("s", "GPU-1")
