"""What follows from a session's idleness, with a clock of the test's own."""

from __future__ import annotations

import pytest

from gpuspawner.errors import InUse
from gpuspawner.idle import IdleTimes
from gpuspawner.service.idle import IdleWatch, words
from gpuspawner.share import GPUShare

HALF, EIGHTH = GPUShare(4), GPUShare(1)


class World:
    """One session `s` whose watch looks every second."""

    def __init__(self, times: IdleTimes) -> None:
        self.now = 1000.0
        self.work: bool | None = False
        self.share = HALF
        self.in_use = False
        self.shrinks: list[str] = []
        self.back: list[GPUShare] = []
        self.watch = IdleWatch(
            times, lambda: {"s": self.work}, self.shrink, lambda: self.now, lambda _, share: self.back.append(share)
        )

    def shrink(self, session: str, share: GPUShare, why: str) -> None:
        self.shrinks.append(why)
        if self.in_use:
            raise InUse("Free something first.")
        self.share = share

    def go(self, seconds: int, *, server: bool = True, hub: float | None = None) -> None:
        """Time passes; the server reports that nothing was done in it."""
        for _ in range(seconds):
            self.now += 1
            self.watch.look({"s": self.share})
            if server:
                self.watch.report("s", 1e6, by_server=True)
            if hub is not None:
                self.watch.report("s", hub, by_server=False)

    def codes(self) -> list[str]:
        return [notice.code for notice in self.watch.notices("s", self.share)]


@pytest.fixture
def world() -> World:
    return World(IdleTimes(warn=40, shrink=80, cull=160, check=5))


def test_an_idle_session_is_warned_then_shrunk_then_due(world: World) -> None:
    world.go(30)
    assert world.codes() == []
    world.go(20)
    (notice,) = world.watch.notices("s", world.share)
    assert notice.code == "idle"
    assert "1/8" in notice.message
    assert notice.deadline is not None
    assert 30 < notice.deadline - notice.since <= 80
    assert world.shrinks == []
    world.go(40)
    assert world.shrinks == ["idle for 1 minute, from 1/2"]
    assert world.share == EIGHTH
    assert world.codes() == ["idle_shrunk", "idle"]
    assert "stopped" in list(world.watch.notices("s", world.share))[1].message
    assert not world.watch.due("s")
    world.go(80)
    assert world.watch.due("s")


@pytest.mark.case("hub-14")
@pytest.mark.parametrize("work", [True, None], ids=["at work", "unknown"])
def test_work_on_the_card_is_use_and_what_is_not_known_too(world: World, work: bool | None) -> None:
    world.work = work
    world.go(1000)
    assert (world.codes(), world.shrinks, world.watch.due("s")) == ([], [], False)


@pytest.mark.case("hub-14")
def test_a_busy_kernel_is_use_whatever_the_hub_says(world: World) -> None:
    for _ in range(1000):
        world.go(1, server=False)
        world.watch.report("s", 0.0, by_server=True)
        world.watch.report("s", 1e6, by_server=False)
    assert (world.codes(), world.shrinks, world.watch.due("s")) == ([], [], False)


def test_a_server_that_says_nothing_may_be_doing_anything(world: World) -> None:
    world.go(1000, server=False)
    assert world.codes() == []
    # but where the hub knows better, it is believed
    world.go(200, server=False, hub=1e6)
    assert world.watch.due("s")


def test_an_open_tab_is_no_use_where_the_server_speaks(world: World) -> None:
    world.go(200, hub=0.0)  # the hub hears the tab's requests all the time
    assert world.watch.due("s")


def test_use_takes_everything_back_and_the_times_begin_anew(world: World) -> None:
    world.in_use = True
    world.go(100)
    assert len(world.shrinks) == 1, "once, not at each look"
    assert world.share == HALF
    assert world.codes() == ["idle"]
    world.work = True
    world.go(2)
    assert world.codes() == []
    world.work, world.in_use = False, False
    world.go(70)
    assert len(world.shrinks) == 1
    world.go(20)
    assert world.share == EIGHTH


def test_nobody_is_due_before_a_whole_idle_time_was_seen(world: World) -> None:
    """After a restart a server may say at once that it has been idle for days: its user was not warned yet."""
    world.go(2)
    assert world.watch.report("s", 1e6, by_server=True) < 5  # type: ignore[operator]
    assert not world.watch.due("s")


def test_where_it_is_off_nothing_is_asked() -> None:
    watch = IdleWatch(IdleTimes(), lambda: pytest.fail("asked"), lambda *_: pytest.fail("shrunk"))
    watch.look({"s": HALF})
    assert watch.report("s", 5, by_server=True) is None
    assert not watch.due("s")


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 seconds"), (60, "1 minute"), (3599, "59 minutes"), (5400, "1.5 hours")]
)
def test_times_in_words(seconds: float, text: str) -> None:
    assert words(seconds) == text


def test_what_was_taken_for_idleness_is_given_back_once_it_is_used(world: World) -> None:
    world.go(90)
    assert world.share == EIGHTH
    world.go(20)
    assert world.back == []
    world.work = True
    world.go(8)
    assert world.back == [HALF], "once"


def test_who_chose_a_share_meanwhile_keeps_it(world: World) -> None:
    world.go(90)
    world.watch.chose("s")
    world.work = True
    world.go(10)
    assert world.back == []
