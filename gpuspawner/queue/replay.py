"""What a policy makes of a trace."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuspawner.queue.actions import Action, Grow, Park, Shrink, Start
from gpuspawner.queue.board import Board, Running
from gpuspawner.queue.clockwork import Clockwork, expected_wait
from gpuspawner.queue.forecast import Expected, Record
from gpuspawner.queue.rules import CLASSES, Rules
from gpuspawner.queue.trace import Job, Trace
from gpuspawner.share import EIGHTHS_PER_CARD

#: What coming back from a checkpoint takes by default, in seconds.
RETURN_SECONDS = 30.0


@dataclass(frozen=True)
class Waits:
    """Seconds that those of one class waited for their first start; None where there was nobody."""

    count: int
    median: float | None
    p99: float | None
    longest: float | None


@dataclass(frozen=True)
class Result:
    """What came out. `utilisation`: eighths held over all there are, until the last one came, from 0 to 1.
    `idle_eighth_seconds`: what nobody held in that time. `missed`: deadlines, of `deadlines`. `returns`: seconds that
    coming back from checkpoints took. `expected`: for those asked, seconds they were told they would wait and did."""

    policy: str
    jobs: int
    utilisation: float
    idle_eighth_seconds: float
    waits: dict[str, Waits]
    deadlines: int
    missed: int
    shrinks: int
    parks: int
    returns: float
    seconds: float
    expected: tuple[tuple[float | None, float], ...] = ()
    #: Ranges that those asked were told, and what they waited; None where it was not known yet.
    told: tuple[tuple[Expected | None, float], ...] = ()
    #: All waits by class, in order, and how many eighths were held from when on, both where they were asked for.
    waited: dict[str, tuple[float, ...]] = field(default_factory=dict)
    held: tuple[tuple[float, int], ...] = ()


def replay(
    trace: Trace,
    rules: Rules,
    *,
    return_seconds: float = RETURN_SECONDS,
    ask_every: int = 0,
    otherwise: float = 3600.0,
    whole: bool = False,
) -> Result:
    """Run a whole trace by the rules in virtual time. `ask_every`: of so many who come one is told how long it will
    wait, `otherwise` being how long those are taken to run who have not said it; 0: nobody. `whole`: with all waits and
    what was held when."""
    tally = _Tally(trace, return_seconds, whole)
    board = Board(trace.rooms())
    clock = Clockwork(
        board,
        rules,
        work={job.session: job.seconds for job in trace.jobs},
        return_seconds=return_seconds,
        heard=tally.hear,
        ended=tally.end,
    )
    told: dict[str, float | None] = {}
    ranges: dict[str, Expected | None] = {}
    for number, job in enumerate(trace.jobs):
        clock.forward(job.at)
        board.wait(job.waiting())
        clock.decide()
        if ask_every and number % ask_every == 0 and job.session in board.waiting:
            usual = tally.record.usual(otherwise)
            told[job.session] = wait = expected_wait(board, rules, clock.now, job.session, otherwise=usual)
            ranges[job.session] = tally.ask(job, wait, clock.now)
    tally.close(clock.now)
    while (when := clock.next_event()) < math.inf or board.waiting:
        # those for whom a card is kept only after a while need another look
        clock.forward(when if when < math.inf else clock.now + rules.hold_seconds)
        if when == math.inf and not clock.decide() and not board.running:
            break
    expected = tuple((seconds, tally.waits[session]) for session, seconds in told.items() if session in tally.waits)
    ranged = tuple((said, tally.waits[session]) for session, said in ranges.items() if session in tally.waits)
    return tally.result(rules.name, clock.now, expected, ranged)


class _Tally:
    def __init__(self, trace: Trace, return_seconds: float, whole: bool) -> None:
        self._course: list[tuple[float, int]] | None = [] if whole else None
        self.waits: dict[str, float] = {}
        self._jobs = {job.session: job for job in trace.jobs}
        self._eighths = sum(each.count for each in trace.cards) * EIGHTHS_PER_CARD
        self._return = return_seconds
        self._held: dict[str, tuple[float, int]] = {}
        self._per_card: dict[str, int] = {}
        self._sum = 0.0
        self._until = math.inf
        self.record = Record()
        self._asked: dict[str, tuple[Job, float, float]] = {}
        self._started: dict[str, float] = {}
        self._shrinks = self._parks = self._missed = 0

    def ask(self, job: Job, forecast: float | None, now: float) -> Expected | None:
        """Somebody who begins to wait is told how long, by what became of what others were told."""
        going = [(expected, now - since) for other, expected, since in self._asked.values() if other.kind == job.kind]
        if forecast is not None:
            self._asked[job.session] = job, forecast, now
        return self.record.expected(job.kind, forecast, going)

    def hear(self, now: float, action: Action) -> None:
        """One thing was done."""
        if isinstance(action, Start):
            self._started.setdefault(action.session, now)
            asked = self._asked.pop(action.session, None)
            if asked is not None:
                self.record.waited(asked[0].kind, asked[1], now - asked[2])
            self.waits.setdefault(action.session, now - self._jobs[action.session].at)
            self._per_card[action.session] = len(action.cards)
            self._hold(action.session, now, action.eighths * len(action.cards))
        elif isinstance(action, Shrink | Grow):
            self._shrinks += isinstance(action, Shrink)
            self._hold(action.session, now, action.eighths * self._per_card[action.session])
        elif isinstance(action, Park):
            self._parks += 1
            self._hold(action.session, now, 0)

    def end(self, now: float, running: Running) -> None:
        """One was done."""
        self.record.ran(now - self._started.pop(running.session))
        self._hold(running.session, now, 0)
        deadline = running.asked.deadline
        self._missed += deadline is not None and now > deadline

    def close(self, now: float) -> None:
        """The last one came; what is used from now on says nothing of the rules, for the queue runs empty."""
        for session, (_, eighths) in list(self._held.items()):
            self._hold(session, now, eighths)
        self._until = now

    def _hold(self, session: str, now: float, eighths: int) -> None:
        since, held = self._held.pop(session, (now, 0))
        if now <= self._until:
            self._sum += held * (now - since)
        if eighths:
            self._held[session] = now, eighths
        if self._course is not None:
            last = self._course[-1][1] if self._course else 0
            self._course.append((now, last + eighths - held))

    def result(
        self,
        policy: str,
        seconds: float,
        expected: Sequence[tuple[float | None, float]],
        told: Sequence[tuple[Expected | None, float]],
    ) -> Result:
        """All of it."""
        by_class: defaultdict[str, list[float]] = defaultdict(list)
        for session, wait in self.waits.items():
            by_class[self._jobs[session].kind].append(wait)
        whole = self._eighths * self._until
        never = [job for name, job in self._jobs.items() if name not in self.waits and job.deadline is not None]
        return Result(
            policy=policy,
            jobs=len(self._jobs),
            utilisation=self._sum / whole if whole else 0.0,
            idle_eighth_seconds=whole - self._sum,
            waits={kind: _waits(by_class[kind]) for kind in CLASSES},
            waited={} if self._course is None else {kind: tuple(by_class[kind]) for kind in CLASSES},
            held=tuple(self._course or ()),
            deadlines=sum(job.deadline is not None for job in self._jobs.values()),
            missed=self._missed + len(never),
            shrinks=self._shrinks,
            parks=self._parks,
            returns=self._parks * self._return,
            seconds=seconds,
            expected=tuple(expected),
            told=tuple(told),
        )


def _waits(seconds: list[float]) -> Waits:
    seconds.sort()
    if not seconds:
        return Waits(0, None, None, None)
    return Waits(len(seconds), _quantile(seconds, 0.5), _quantile(seconds, 0.99), seconds[-1])


def _quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest that `part` of all do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
