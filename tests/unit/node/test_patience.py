"""Nobody waits long for a driver that does not answer, and what it did too late is undone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from support.common import until

from gpuspawner.node.drivers.base import DriverError
from gpuspawner.node.drivers.patience import Patience


class Stuck:
    """A call that returns when it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self) -> str:
        self.go.wait(60)
        return "late"


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    one = Stuck()
    yield one
    one.go.set()


def test_what_is_returned_or_raised_comes_through() -> None:
    patience = Patience("it")
    assert patience.call(lambda: 7) == 7
    for error in (KeyError("x"), TimeoutError("the driver's own")):

        def fail(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)) as raised:
            patience.call(fail)
        assert raised.value is error
    assert not patience.silent()


def test_one_waits_and_all_others_are_told_at_once(stuck: Stuck) -> None:
    now = 100.0
    patience = Patience("The driver", 0.05, lambda: now)
    with pytest.raises(DriverError, match="The driver has not answered"):
        patience.call(stuck)
    assert not patience.silent(), "by the clock it has only begun"
    now += 0.05
    asked: list[int] = []
    with pytest.raises(DriverError):
        patience.call(lambda: asked.append(1))
    assert asked == []
    stuck.go.set()
    until(lambda: not patience.silent(), 10, "the call to return")
    assert patience.call(lambda: 7) == 7
    assert asked == [], "who was told does not get it afterwards"


def test_what_comes_too_late_is_undone_and_the_next_one_sees_that(stuck: Stuck) -> None:
    patience = Patience("The driver", 0.05)
    undone: list[str] = []
    with pytest.raises(DriverError):
        patience.call(stuck, undone.append)
    stuck.go.set()
    until(lambda: not patience.silent(), 10, "the call to return")
    assert patience.call(lambda: list(undone)) == ["late"]


def test_who_gave_up_before_its_turn_is_passed_over(stuck: Stuck) -> None:
    patience = Patience("The driver", 0.2, lambda: 0.0)
    _give_up(patience, stuck)
    asked: list[int] = []
    _give_up(patience, lambda: asked.append(1))
    stuck.go.set()
    until(lambda: _answers(patience), 10, "an answer")
    assert asked == []


def test_a_longer_wait_for_what_takes_long(stuck: Stuck) -> None:
    patience = Patience("The driver", 0.01)
    threading.Timer(0.1, stuck.go.set).start()
    assert patience.call(stuck, seconds=60) == "late"


def _answers(patience: Patience) -> bool:
    try:
        return patience.call(lambda: True)
    except DriverError:
        return False


def _give_up(patience: Patience, do: Callable[[], object]) -> None:
    with pytest.raises(DriverError):
        patience.call(do)
