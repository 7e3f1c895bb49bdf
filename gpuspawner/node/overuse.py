"""Who computes for longer than it may, at the cost of others. The driver's figures judge it, the policy acts on it.

The shim holds honest programs to their part of a card's time. A session that goes around it is seen here: what it used
of a card over `WINDOW` is clearly above what it may use, while another one that computes all the time gets less than
its share. Whoever harms nobody is left alone: a session by itself on a card, or beside others that are idle.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpuspawner.node.compute import WHOLE, Process, Use
from gpuspawner.node.gate import Policy, name_of
from gpuspawner.node.offences import MOST_ENDED, Notice, Offences, Verdict
from gpuspawner.node.sight import end_process
from gpuspawner.processes import start_time

log = logging.getLogger(__name__)

#: Seconds over which use is averaged: a hundred of the periods in which the shim gives everybody its turn.
WINDOW = 10.0
#: Of which so much must be known before anybody is judged.
KNOWN = 0.8 * WINDOW
#: Thousandths above what a session may use. An honest program is above by what it has not paid yet: a kernel cannot be
#: stopped, so that one of 1.5 s is 15 points of the window. The rest of its error is small beside that: the shim
#: holds a share within 2 points, and the driver counts in whole percent.
MARGIN = 150
#: Another session wants compute when it computes in so many of the looks (a part of them)
WANTING = 0.5
#: and gets less than its share when it gets less than so much of it.
ENOUGH = 0.8
#: Seconds for which a figure may stand: drivers count anew at least that often while there is work.
STANDS = 1.0


@dataclass(frozen=True)
class _Figures:
    """What the driver said of a card, and for how many seconds it stands."""

    at: float
    seconds: float
    uses: Mapping[str, Use]
    processes: Mapping[str, Mapping[Process, int]]


@dataclass
class _Mean:
    """What a session used, may use and holds, in thousandths, and the part of the time in which it computed at all."""

    used: float = 0.0
    allowed: float = 0.0
    own: float = 0.0
    at_work: float = 0.0

    def add(self, use: Use, weight: float) -> None:
        self.used += weight * use.used
        self.allowed += weight * max(use.allowed, use.own)
        self.own += weight * use.own
        self.at_work += weight * (use.used > 0)

    @property
    def wants(self) -> bool:
        return self.at_work >= WANTING

    @property
    def lacks(self) -> bool:
        return self.used < ENOUGH * self.own


@dataclass
class _Card:
    """The figures of the last `WINDOW`, oldest first."""

    figures: deque[_Figures] = field(default_factory=deque)

    def add(self, now: float, uses: list[Use], processes: Mapping[str, Mapping[Process, int]]) -> None:
        seconds = min(now - self.figures[-1].at, STANDS) if self.figures else 0.0
        self.figures.append(_Figures(now, seconds, {use.session: use for use in uses}, processes))

    def forget(self, now: float) -> None:
        while self.figures and self.figures[0].at <= now - WINDOW:
            self.figures.popleft()

    def judge(self) -> dict[str, tuple[int, int]]:
        """The sessions that take from others, with what they used and what they may use, in thousandths."""
        known = sum(each.seconds for each in self.figures)
        if known < KNOWN:
            return {}

        means: defaultdict[str, _Mean] = defaultdict(_Mean)
        for each in self.figures:
            for session, use in each.uses.items():
                means[session].add(use, each.seconds / known)
        deprived = {session for session, mean in means.items() if mean.wants and mean.lacks}
        return {
            session: (round(mean.used), round(mean.allowed))
            for session, mean in means.items()
            if round(mean.used - mean.allowed) > MARGIN and deprived - {session}
        }

    def by_process(self, session: str) -> list[Process]:
        """The session's processes that still run, the one that computed most first."""
        sums: defaultdict[Process, float] = defaultdict(float)
        for each in self.figures:
            for process, percent in each.processes.get(session, {}).items():
                sums[process] += each.seconds * percent
        return sorted((each for each in sums if start_time(each[0]) == each[1]), key=lambda each: -sums[each])


@dataclass
class _Case:
    """A session that takes from others on a card now. Seconds since the epoch."""

    since: float
    message: str = ""
    deadline: float | None = None


class Overuse:
    """Judges the figures that it is told. Thread-safe.

    `is_judged`: whether the sessions on a card share its time; a slice of a card is its holder's alone.
    """

    def __init__(
        self, policy: Policy, *, is_judged: Callable[[str], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._policy = policy
        self._is_judged = is_judged
        self._clock = clock
        self._lock = threading.Lock()
        self._cards: defaultdict[str, _Card] = defaultdict(_Card)
        self._cases: dict[tuple[str, str], _Case] = {}  # by session and card
        self._offences = Offences(clock)
        self._looked = clock()

    def seen(self, card: str, uses: list[Use], processes: Mapping[str, Mapping[Process, int]]) -> None:
        """New figures of the driver: everybody's use of a card, and percent of it by session and process."""
        if self._is_judged(card):
            with self._lock:
                self._cards[card].add(self._clock(), uses, processes)
                self._cards[card].forget(self._clock())

    def look(self, live: Mapping[str, str]) -> list[Verdict]:
        """Judge once, and act by policy. `live`: the sessions that have not ended, with whose each is."""
        verdicts: list[Verdict] = []
        with self._lock:
            now, since = self._clock(), self._looked
            self._looked = now
            self._offences.forget(live)
            over = set()
            for card, figures in self._cards.items():
                figures.forget(now)
                for session, (used, allowed) in figures.judge().items():
                    if session in live:
                        over.add((session, card))
                        seconds = min(now - since, STANDS)
                        verdicts += self._judge(session, live[session], card, used, allowed, seconds)
            self._cases = {key: case for key, case in self._cases.items() if key in over}
            offend = {(live[session], card) for session, card in over}
            for key, past in self._offences.known().items():
                if key not in offend:  # as long within its share gives back what was spent
                    past.give_back(now - since)
        return verdicts

    def notices(self, session: str) -> list[Notice]:
        """What the session's user should know now."""
        with self._lock:
            found = [
                Notice("over_compute", case.message, case.since, case.deadline)
                for (name, _), case in self._cases.items()
                if name == session
            ]
            return [*found, *self._offences.notices(session)]

    def _judge(self, session: str, user: str, card: str, used: int, allowed: int, seconds: float) -> list[Verdict]:
        case = self._cases.get((session, card))
        if case is None:
            case = self._cases[session, card] = _Case(time.time())
        else:
            self._offences.spend(user, card, seconds)
        text = f"{percent(used)} of the time of card {card} and may use {percent(allowed)}, which others lack"
        case.message = f"This session uses {text}. Programs that go around the driver library they were given do that."
        verdicts = []
        if self._offences.to_tell(session, card):
            verdicts.append(Verdict(session, f"it uses {text}"))
            log.warning("session %s: it uses %s", session, text)
        processes = self._cards[card].by_process(session)
        if self._policy.compute != "end" or not processes:
            case.deadline = None
            return verdicts
        left = self._offences.of(user, card).grace(self._policy.seconds)
        if left <= 0:
            return verdicts + self._end(session, user, card, processes[0], used)
        case.deadline = time.time() + left
        when = datetime.fromtimestamp(case.deadline, UTC).strftime("%H:%M:%S")
        case.message += f" If it goes on until {when} UTC, process {processes[0][0]} ({name_of(processes[0][0])}) ends."
        return verdicts

    def _end(self, session: str, user: str, card: str, process: Process, used: int) -> list[Verdict]:
        name = name_of(process[0])
        if not end_process(*process):
            return []
        self._cards[card].figures.clear()  # what it used is nothing that another process is to end for
        del self._cases[session, card]
        text = f"process {process[0]} ({name}) was ended: this session used {percent(used)} of the time of card {card}"
        log.warning("session %s: %s", session, text)
        notice = Notice("process_ended", f"{text[0].upper()}{text[1:]}.", time.time())
        count = self._offences.ended(user, card, notice, session)
        verdicts = [Verdict(session, text)]
        if count >= MOST_ENDED:
            reason = f"{count} processes of its user were ended within the hour for computing longer than a share"
            verdicts.append(Verdict(session, reason, hopeless=True))
        return verdicts


def percent(thousandths: int) -> str:
    """As people read it."""
    return f"{round(thousandths * 100 / WHOLE)} %"
