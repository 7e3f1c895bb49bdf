"""Whose memory it is that the driver shows: of a live session, of one that has ended, or of nobody's."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuspawner.node.drivers.base import Driver, DriverError
from gpuspawner.node.presence import LAUNCHED, Presence
from gpuspawner.node.records import Record
from gpuspawner.processes import start_time

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holder:
    """A process that the driver shows on a card.

    `used_bytes` is None where the driver does not say how much it holds. `started` is its start time in clock ticks
    since boot, None where it has ended and only the driver still knows it. `session` is None for a stranger.
    """

    card: str
    pid: int
    started: int | None
    used_bytes: int | None
    session: str | None


class Sight:
    """Reads the driver's processes and tells the sessions' apart. Thread-safe.

    `presence` says whose a process is. One that was seen in a session is remembered by pid
    and start time, so that it is still known as the session's when that has ended.
    """

    def __init__(self, driver: Driver, folder_of: Callable[[str], Path], presence: Presence = LAUNCHED) -> None:
        self._driver = driver
        self._folder_of = folder_of
        self._presence = presence
        self._lock = threading.Lock()
        self._seen: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._quiet: dict[str, tuple[str, int]] = {}  # card -> what it failed with, and how often

    def holders(self, card: str, records: Iterable[Record]) -> list[Holder] | None:
        """Everybody who holds memory of `card`, with the one of `records` that each belongs to.

        None while the driver does not say.
        """
        by_process = self._by_process(card)
        if by_process is None:
            return None
        records = list(records)
        folders = {self._folder_of(record.session): record for record in records}
        owners = self._presence.owners(folders, by_process)
        found = []
        for pid, used in by_process.items():
            started = start_time(pid)
            record = folders[owners[pid]] if pid in owners else _left_by(pid, started, records)
            if record is not None and record.state == "live" and started is not None:
                with self._lock:
                    self._seen[record.session][pid] = started
            found.append(Holder(card, pid, started, used, None if record is None else record.session))
        return found

    def used(self, record: Record) -> int | None:
        """Bytes that the driver shows for the session, those of processes that have just ended included."""
        total = 0
        for card in record.cards:
            holders = self.holders(card, [record])
            if holders is None:
                return None
            for holder in holders:
                if holder.session == record.session:
                    if holder.used_bytes is None:
                        return None
                    total += holder.used_bytes
        return total

    def remembered(self, session: str) -> tuple[tuple[int, int], ...]:
        """(pid, start time) of the processes that the driver has shown for a live session."""
        with self._lock:
            return tuple(sorted(self._seen[session].items()))

    def forget(self, session: str) -> None:
        """The session is over."""
        with self._lock:
            self._seen.pop(session, None)

    def _by_process(self, card: str) -> dict[int, int | None] | None:
        try:
            by_process = self._driver.used_bytes(card)
        except DriverError as error:
            self._failed(card, str(error))
            return None
        with self._lock:
            _, failures = self._quiet.pop(card, ("", 0))
        if failures:
            log.info("the driver of card %s answers again, after %d looks without an answer", card, failures)
        return by_process

    def _failed(self, card: str, problem: str) -> None:
        """Say it once for each problem: a driver that is silent is asked several times a second."""
        with self._lock:
            before, failures = self._quiet.get(card, ("", 0))
            self._quiet[card] = (problem, failures + 1)
        if before != problem:
            log.warning("%s Said once, until that changes.", problem)


def end_process(pid: int, started: int) -> bool:
    """Kill process `pid` if it is still the one that started at `started`. True where it was killed, or is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if start_time(pid) == started:  # what the descriptor names can no longer change
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return True
    except PermissionError as error:
        log.warning("process %d could not be ended: %s", pid, error)
        return False
    finally:
        os.close(descriptor)
    return True


def _left_by(pid: int, started: int | None, records: Iterable[Record]) -> Record | None:
    for record in records:
        for known, known_start in record.pids:
            if pid == known and started in (None, known_start):
                return record
    return None
