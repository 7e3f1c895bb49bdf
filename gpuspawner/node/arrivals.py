"""Cards that were lost or absent when the agent started, and those that come later."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from gpuspawner.card import Card
from gpuspawner.errors import GPUSpawnerError
from gpuspawner.node.drivers.base import Driver

log = logging.getLogger(__name__)

#: Seconds between two looks for cards that are missing: for one the driver's library is opened anew.
EVERY = 5.0


class Arrivals:
    """Looks for cards that are not `known` yet. Not thread-safe: one watcher looks."""

    def __init__(self, driver: Driver, known: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._driver = driver
        self._known = known
        self._clock = clock
        self._looked = clock()

    def look(self) -> list[Card]:
        """The cards that the driver shows and nobody knows."""
        if self._clock() - self._looked < EVERY or not self._driver.missing():
            return []
        self._looked = self._clock()
        try:
            return [card for card in self._driver.cards() if card.uuid not in self._known]
        except GPUSpawnerError as error:
            log.warning("%s", error)
            return []
