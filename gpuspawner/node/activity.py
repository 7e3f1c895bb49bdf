"""Which sessions work on their cards, by the driver's figures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from gpuspawner.node.drivers.base import Driver, DriverError
from gpuspawner.node.utilization import Utilization

log = logging.getLogger(__name__)


class CardActivity:
    """Compares each look with the last one. Not thread-safe: one watcher looks."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._utilization = Utilization(driver)
        self._memory: dict[str, dict[int, int | None]] = {}

    def look(
        self, sessions: Mapping[str, Iterable[str]], owners: Callable[[Iterable[int]], Mapping[int, str]]
    ) -> dict[str, bool | None]:
        """For each session (with the uuids of its cards): whether it worked since the last look, None if unknown.

        Work is computing, and taking or giving back memory: memory that is only held is none. `owners` says which
        session each of some processes belongs to.
        """
        active = {uuid: self._active(uuid) for uuid in {uuid for uuids in sessions.values() for uuid in uuids}}
        pids = {pid for on_card in active.values() if on_card is not None for pid in on_card}
        at_work = set(owners(pids).values()) if pids else set()
        found: dict[str, bool | None] = {}
        for session, uuids in sessions.items():
            unknown = any(active[uuid] is None for uuid in uuids)
            found[session] = True if session in at_work else None if unknown else False
        return found

    def _active(self, uuid: str) -> set[int] | None:
        try:
            memory = self._driver.used_bytes(uuid)
            pids = self._at_work(uuid)
        except DriverError as error:
            log.warning("%s", error)
            return None
        before, self._memory[uuid] = self._memory.get(uuid, memory), memory
        if pids is None:
            return None
        return pids | {pid for pid, used in memory.items() if before.get(pid, 0) != used}

    def _at_work(self, uuid: str) -> set[int] | None:
        """Whoever did something; where the driver tells it of the whole card alone, nobody, or None for somebody."""
        try:
            return {sample.pid for sample in self._utilization.news(uuid).values() if sample.worked}
        except DriverError:
            return set() if self._driver.idle(uuid) else None
