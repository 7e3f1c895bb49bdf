"""Which part of a card's time each session may compute in, and when its turn in the period comes.

A session has an eighth of the card for each of its eighths. The turns of the sessions of a card follow each other. With
burst a session may also have what the others leave idle: the driver's figures by process say what each uses, several
times a second, and what is left goes to those that want more, by their shares. Nobody's own part is ever taken: who was
idle may compute at once, and the next look takes back what was lent.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuspawner.node.drivers.base import Driver, DriverError
from gpuspawner.node.limits import abi, launch
from gpuspawner.node.presence import LAUNCHED, Presence
from gpuspawner.node.records import Record, Records
from gpuspawner.node.utilization import Utilization
from gpuspawner.processes import start_time
from gpuspawner.share import EIGHTHS_PER_CARD

log = logging.getLogger(__name__)

WHOLE = 1000
"""Parts are in thousandths of a card's time."""

LOOK_SECONDS = 0.1
"""Between two looks at what sessions use, while one has burst or several compute on one card."""

SELDOM_SECONDS = 0.5
"""The same while none has and none do."""

Part = tuple[int, int]
"""How much, and where its turn begins, both in thousandths."""

Process = tuple[int, int]
"""Pid and start time (clock ticks since boot)."""

_IDLE = 10  # thousandths; who uses less leaves all of its part to others
_SPARE = 30  # above what is used and not lent, so that using more shows


@dataclass(frozen=True)
class Use:
    """What a session holds of a card, what it may use now and what it used of late, both in thousandths."""

    session: str
    eighths: int
    burst: bool
    allowed: int
    used: int

    @property
    def own(self) -> int:
        """Its part."""
        return self.eighths * WHOLE // EIGHTHS_PER_CARD

    @property
    def wants(self) -> bool:
        """Whether it uses nearly all that it may."""
        return self.used * 10 >= self.allowed * 8

    @property
    def reserved(self) -> int:
        """What is not lent of its part."""
        if self.used < _IDLE:
            return 0
        return self.own if self.used * 2 > self.own else min(self.own, self.used + self.used // 4 + _SPARE)


def turns(holders: Iterable[tuple[str, int]]) -> dict[str, Part]:
    """Every session's own part, one turn after the other. `holders`: session and eighths; the largest come first."""
    found, start = {}, 0
    for session, eighths in sorted(holders, key=lambda each: (-each[1], each[0])):
        part = eighths * WHOLE // EIGHTHS_PER_CARD
        found[session] = (part, min(start, WHOLE))
        start += part
    return found


def split(uses: list[Use]) -> dict[str, Part]:
    """What each session may use of a card until the next look.

    Those with burst that want more share what nobody else reserves by their eighths, and have no less than their part.
    """
    wanting = [use for use in uses if use.burst and use.wants]
    left = WHOLE - sum(use.reserved for use in uses if use not in wanting)
    eighths = sum(use.eighths for use in wanting)
    allowed, starts, start = {}, {}, 0
    for use in sorted(uses, key=lambda each: (-each.eighths, each.session)):
        allowed[use.session] = use.own
        if use in wanting:
            allowed[use.session] = max(use.own, min(WHOLE, left * use.eighths // eighths))
        starts[use.session] = min(start, WHOLE)
        start += allowed[use.session] if use in wanting else use.reserved
    return {session: (part, starts[session]) for session, part in allowed.items()}


class Compute:
    """The parts of all cards of a machine. A thread looks at what is used while there are several sessions, or one
    with burst.

    `seen` is told, of each card, all new figures: everybody's use, and percent of the card by session and process.
    """

    def __init__(
        self,
        driver: Driver,
        records: Records,
        lock: threading.RLock,
        folder_of: Callable[[str], Path],
        seen: Callable[[str, list[Use], Mapping[str, Mapping[Process, int]]], None],
        presence: Presence = LAUNCHED,
    ) -> None:
        self._utilization = Utilization(driver)
        self._presence = presence
        self._records = records
        self._lock = lock
        self._folder_of = folder_of
        self._seen = seen
        self._parts: dict[tuple[str, str], Part] = {}  # by card and session
        self._used: dict[tuple[str, str], int] = {}
        self._without: set[str] = set()  # cards whose driver gives no figures by process
        self._wake = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def part_of(self, session: str, card: str, eighths: int) -> Part:
        """What a session with `eighths` of `card` may use now. With the lock held."""
        holders = {record.session: record.eighths for record in self._live(card)} | {session: eighths}
        own = turns(holders.items())[session]
        before = self._parts.get((card, session))
        if before is not None and before[0] > own[0] > 0 and self._bursts(session):
            return before
        self._parts[card, session] = own
        return own

    def settle(self, cards: Iterable[str]) -> None:
        """Somebody came, went or changed: everybody's turn on those cards moves. With the lock held."""
        for card in cards:
            found = turns((record.session, record.eighths) for record in self._live(card))
            self._put(card, found)
        live = [record for record in self._records.all() if record.state == "live"]
        if len(live) > 1 or any(record.burst for record in live):
            self._start()

    def close(self) -> None:
        """End the thread."""
        self._over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> float | None:
        """Read what is used on every card that somebody holds, once, and move the parts where a session has burst.

        Seconds until the next look; None where nobody could borrow from another or take from it.
        """
        with self._lock:
            live = [record for record in self._records.all() if record.state == "live"]
        bursting = {card for record in live if record.burst for card in record.cards}
        cards = {card for record in live for card in record.cards} if len(live) > 1 else bursting
        if not cards:
            return None
        read = {card: found for card in sorted(cards) if (found := self._read(card)) is not None}
        folders = {self._folder_of(record.session): record.session for record in live}
        owners = self._presence.owners(folders, {pid for percent in read.values() for pid in percent})
        several = False
        for card, percent in read.items():
            fresh = bool(percent)
            shown: dict[str, dict[int, int]] = {}
            for pid, folder in owners.items():
                if pid in percent:
                    shown.setdefault(folders[folder], {})[pid] = percent[pid]
            uses = self._follow(card, fresh, shown, burst=card in bursting)
            several |= sum(use.used > 0 for use in uses) > 1
            if fresh:
                self._seen(card, uses, {session: _started(pids) for session, pids in shown.items()})
        return LOOK_SECONDS if bursting or several else SELDOM_SECONDS

    def _follow(self, card: str, fresh: bool, shown: Mapping[str, Mapping[int, int]], *, burst: bool) -> list[Use]:
        """What everybody uses of a card, those who hold nothing of it included. With `burst` the parts move."""
        used = {session: min(WHOLE, sum(pids.values()) * WHOLE // 100) for session, pids in shown.items()}
        with self._lock:
            uses = []
            for record in self._live(card):
                key = (card, record.session)
                # No new figures: nobody computes, or the driver has not counted anew. What was last known fades.
                self._used[key] = used.pop(record.session, 0) if fresh else self._used.get(key, 0) // 2
                allowed = self._allowed(card, record)
                uses.append(Use(record.session, record.eighths, record.burst, allowed, self._used[key]))
            if burst:
                self._put(card, split(uses))
        return [*uses, *(Use(session, 0, False, 0, had) for session, had in used.items())]

    def _allowed(self, card: str, record: Record) -> int:
        part, _ = self._parts.get((card, record.session), (0, 0))
        return part or record.eighths * WHOLE // EIGHTHS_PER_CARD

    def _read(self, card: str) -> dict[int, int] | None:
        """Percent of the card by process, empty where the driver has no new figures; None where it does not say."""
        try:
            return {pid: sample.percent for pid, sample in self._utilization.news(card).items()}
        except DriverError as error:
            if card not in self._without:
                self._without.add(card)
                log.warning(
                    "Nothing that is idle on card %s is lent, and nobody sees who computes too long: %s Said once.",
                    card,
                    error,
                )
            return None

    def _put(self, card: str, parts: dict[str, Part]) -> None:
        """Write what has changed. A session without a file has none yet, or none any more."""
        for key in [key for key in self._parts if key[0] == card and key[1] not in parts]:
            del self._parts[key]
            self._used.pop(key, None)
        for session, part in parts.items():
            if self._parts.get((card, session)) == part:
                continue
            self._parts[card, session] = part
            with contextlib.suppress(OSError, abi.LimitFileError):
                abi.move_compute(launch.limit_path(self._folder_of(session)), {card: part})

    def _live(self, card: str) -> list[Record]:
        return [record for record in self._records.on(card) if record.state == "live"]

    def _bursts(self, session: str) -> bool:
        record = self._records.get(session)
        return record is not None and record.burst

    def _start(self) -> None:
        self._wake.set()
        if self._thread is None and not self._over:
            self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._over:
            self._wake.clear()
            try:
                seconds = self.look()
            except Exception:
                log.exception("what sessions use of their cards could not be looked at")
                seconds = SELDOM_SECONDS
            self._wake.wait(seconds)


def _started(pids: Mapping[int, int]) -> dict[Process, int]:
    """Without those that have just ended."""
    return {(pid, started): percent for pid, percent in pids.items() if (started := start_time(pid)) is not None}
