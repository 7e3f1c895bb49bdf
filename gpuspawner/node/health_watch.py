"""Follows the health of a machine's cards: what is read of them, and what they reported since they last came back."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol

from gpuspawner.node.health import FALLEN_OFF_THE_BUS, UNKNOWN, Health, Readings, assess

log = logging.getLogger(__name__)

#: Seconds for which a reading is used again.
FRESH = 1.0
#: Codes that are remembered of one card.
_MOST_XIDS = 32


class Source(Protocol):
    """What a driver must be able to tell."""

    def readings(self, uuid: str, xids: tuple[int, ...]) -> Readings:
        """A card's readings now; `xids` are passed on. Never raises: a card that does not answer is a reading."""
        ...

    def new_xids(self) -> list[tuple[str, int]]:
        """Card and code of the XID events since the last call."""
        ...


class HealthWatch:
    """The health of cards by uuid. Thread-safe.

    XID codes of a card are forgotten when it comes back after it was lost: it was reset or plugged in again. The fault
    of a card that was never away is remembered until this process starts again.
    """

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._xids: defaultdict[str, list[int]] = defaultdict(list)
        self._readings: dict[str, Readings] = {}
        self._health: dict[str, Health] = {}
        self._read_at: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def look(self, uuids: Iterable[str], *, fresh: bool = False) -> None:
        """Read those cards whose last reading is older than a second, or with `fresh` all of them."""
        with self._lock:
            now = self._clock()
            due = [uuid for uuid in uuids if fresh or now - self._read_at.get(uuid, -FRESH) >= FRESH]
            if not due:
                return
            for uuid, code in self._source.new_xids():
                self._xids[uuid] = [*self._xids[uuid], code][-_MOST_XIDS:]
            for uuid in due:
                self._read(uuid)
                self._read_at[uuid] = now

    def _read(self, uuid: str) -> None:
        before = self._readings.get(uuid)
        readings = self._source.readings(uuid, tuple(self._xids[uuid]))
        # It may have gone and come back between two looks, and then only its code tells.
        was_away = (before is not None and before.lost) or FALLEN_OFF_THE_BUS in self._xids[uuid]
        if was_away and readings.answers:
            self._xids.pop(uuid, None)
            readings = self._source.readings(uuid, ())
        self._readings[uuid] = readings
        health, was = assess(readings), self._health.get(uuid)
        self._health[uuid] = health
        if was is None or was.state != health.state:
            self._since[uuid] = time.time()
            level = logging.INFO if health.state == "ok" else logging.WARNING
            log.log(level, "card %s is %s%s", uuid, health.state, f": {health.reason}" if health.reason else "")

    def of(self, uuid: str) -> Health:
        """The card's health at the last look."""
        return self._health.get(uuid, UNKNOWN)

    def since(self, uuid: str) -> float:
        """When the card came to be as it is, in seconds since the epoch; now for one that was not read yet."""
        return self._since.get(uuid, time.time())

    def readings(self, uuid: str) -> Readings | None:
        """The card's readings at the last look."""
        return self._readings.get(uuid)
