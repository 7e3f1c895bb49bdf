"""What processes did on the cards since one asked the last time. Each who asks has a memory of its own."""

from __future__ import annotations

from gpuspawner.node.drivers.base import Driver, Sample


class Utilization:
    """Tells new samples of the driver from those that it has told before. Not thread-safe.

    By the samples and not by their time: their stamps follow the clock of the machine, and while it is set back no
    new one is later than the last.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._known: dict[str, frozenset[tuple[int, int]]] = {}

    def news(self, card: str) -> dict[int, Sample]:
        """The newest sample of each process that did something since the last question; none where the driver has not
        counted anew. The first time all that it knows. Raises DriverError, also where it does not tell."""
        samples = self._driver.samples(card)
        known = self._known.get(card, frozenset())
        self._known[card] = frozenset((each.pid, each.stamp) for each in samples)
        found: dict[int, Sample] = {}
        for each in samples:
            if (each.pid, each.stamp) not in known and (each.pid not in found or each.stamp > found[each.pid].stamp):
                found[each.pid] = each
        return found
