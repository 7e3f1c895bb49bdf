"""New figures of the driver are told from old ones, whatever the clock does meanwhile."""

from __future__ import annotations

from pathlib import Path

from gpuspawner.node.activity import CardActivity
from gpuspawner.node.drivers.base import DriverError, Sample
from gpuspawner.node.utilization import Utilization

CARD = "GPU-1"
HOUR = 3_600_000_000


class Driver:
    def __init__(self) -> None:
        self.known: list[Sample] | None = []
        self.memory: dict[int, int | None] = {}
        self.is_idle: bool | None = True

    def samples(self, card: str) -> list[Sample]:
        assert card == CARD
        if self.known is None:
            raise DriverError("It does not say.")
        return self.known

    def idle(self, card: str) -> bool | None:
        return self.is_idle

    def used_bytes(self, card: str) -> dict[int, int | None]:
        return self.memory


def percent(utilization: Utilization) -> dict[int, int]:
    return {pid: sample.percent for pid, sample in utilization.news(CARD).items()}


def test_news_are_what_was_not_told_before() -> None:
    driver = Driver()
    one, other = (Utilization(driver) for _ in range(2))  # type: ignore[arg-type]
    driver.known = [Sample(1, 100, 10, True), Sample(1, 110, 30, True), Sample(2, 105, 5, True)]
    assert percent(one) == {1: 30, 2: 5}
    assert percent(one) == {}
    driver.known += [Sample(2, 120, 7, True)]
    assert percent(one) == {2: 7}
    assert percent(other) == {1: 30, 2: 7}, "each has a memory of its own"


def test_a_clock_that_is_set_back_hides_nothing() -> None:
    driver = Driver()
    one = Utilization(driver)  # type: ignore[arg-type]
    driver.known = [Sample(1, 5 * HOUR, 10, True)]
    assert percent(one) == {1: 10}
    driver.known = [Sample(1, 4 * HOUR, 40, True)]
    assert percent(one) == {1: 40}
    driver.known = [Sample(1, 4 * HOUR + 1, 50, True), Sample(1, 5 * HOUR, 10, True)]
    assert percent(one)[1] in (10, 50)
    driver.known = [Sample(1, 4 * HOUR + 1, 50, True), Sample(1, 5 * HOUR, 10, True), Sample(1, 4 * HOUR + 2, 60, True)]
    assert percent(one) == {1: 60}, "what the driver still has from before counts no more"


def test_at_work_is_who_did_anything_or_moved_memory(tmp_path: Path) -> None:
    driver = Driver()
    activity = CardActivity(driver)  # type: ignore[arg-type]

    def look() -> bool | None:
        return activity.look({"s": [CARD]}, lambda pids: {pid: "s" for pid in pids if pid < 10})["s"]

    assert look() is False
    driver.known = [Sample(1, 100, 0, True)]
    assert look() is True
    assert look() is False
    driver.known = [Sample(1, 200, 0, False), Sample(99, 200, 80, True)]
    assert look() is False, "nothing was done, or by somebody else"
    driver.memory = {1: 5}
    assert look() is True
    assert look() is False
    driver.known, driver.is_idle = None, True
    assert look() is False
    driver.is_idle = False
    assert look() is None
    driver.is_idle = None
    assert look() is None
