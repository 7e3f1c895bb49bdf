"""Following the health of cards over time."""

from __future__ import annotations

from gpuspawner.node.health import Readings
from gpuspawner.node.health_watch import FRESH, HealthWatch


class Driver:
    """A driver of one card, "a", that says what it is told to say."""

    def __init__(self) -> None:
        self.lost = False
        self.events: list[tuple[str, int]] = []
        self.reads = 0

    def readings(self, uuid: str, xids: tuple[int, ...]) -> Readings:
        self.reads += 1
        return Readings(answers=not self.lost, lost=self.lost, xids=xids)

    def new_xids(self) -> list[tuple[str, int]]:
        events, self.events = self.events, []
        return events


def test_codes_are_kept_until_the_card_was_away() -> None:
    driver = Driver()
    watch = HealthWatch(driver)
    assert watch.of("a").state == "unknown"
    driver.events = [("a", 48), ("b", 62)]
    for _ in range(3):
        watch.look(["a"], fresh=True)
        assert watch.of("a").state == "failed"
    driver.lost = True
    watch.look(["a"], fresh=True)
    assert watch.of("a").reason == "The driver has lost the card."
    driver.lost = False
    watch.look(["a", "b"], fresh=True)
    assert watch.of("a").state == "ok"
    assert watch.of("b").state == "failed"


def test_a_card_that_went_and_came_back_between_two_looks_is_well() -> None:
    driver = Driver()
    watch = HealthWatch(driver)
    driver.events = [("a", 48)]
    watch.look(["a"], fresh=True)
    driver.events = [("a", 79)]
    watch.look(["a"], fresh=True)
    assert watch.of("a").state == "ok"


def test_a_reading_is_used_for_a_second() -> None:
    now = 100.0
    driver = Driver()
    watch = HealthWatch(driver, clock=lambda: now)
    for _ in range(5):
        watch.look(["a"])
    assert driver.reads == 1
    now += FRESH
    watch.look(["a"])
    assert driver.reads == 2
