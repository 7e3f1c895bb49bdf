"""Which sessions work on their cards, by the driver's figures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from gpuspawner.node.drivers.nvml import DriverError, NVMLDriver

log = logging.getLogger(__name__)


class CardActivity:
    """Compares each look with the last one. Not thread-safe: one watcher looks."""

    def __init__(self, driver: NVMLDriver) -> None:
        self._driver = driver
        self._since: dict[str, int] = {}
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
            worked = self._driver.worked(uuid, self._since.get(uuid, 0))
        except DriverError as error:
            log.warning("%s", error)
            return None
        before, self._memory[uuid] = self._memory.get(uuid, memory), memory
        if worked is None:
            return None
        pids, self._since[uuid] = worked
        return pids | {pid for pid, used in memory.items() if before.get(pid, 0) != used}
