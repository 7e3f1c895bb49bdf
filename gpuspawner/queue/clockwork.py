"""The queue in virtual time: what `decide` asks for happens at once, and what runs ends when its work is done."""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuspawner.errors import NotFound
from gpuspawner.queue.actions import Action, Notice, Park, Start, Withdraw
from gpuspawner.queue.board import Board, Running
from gpuspawner.queue.decide import decide
from gpuspawner.queue.rules import Rules

#: What is told of each thing that is done, and of each end: the time, and what it was.
Heard = Callable[[float, Action], None]
Ended = Callable[[float, Running], None]
_HOUR = 3600.0


@dataclass(slots=True)
class _Course:
    """How a session gets on: seconds of work left with its whole share, since when, how fast, how much it holds."""

    left: float
    since: float
    speed: float
    eighths: int


class Clockwork:
    """A board and its clock, which only ever goes forward.

    `work`: seconds that sessions run with their whole share, which the rules need not know; `otherwise` for those that
    are not in it. `return_seconds`: what coming back from a checkpoint takes. `heard`, `ended`: told what happens.
    """

    def __init__(
        self,
        board: Board,
        rules: Rules,
        now: float = 0.0,
        *,
        work: Mapping[str, float] | None = None,
        otherwise: float = _HOUR,
        return_seconds: float = 0.0,
        heard: Heard | None = None,
        ended: Ended | None = None,
    ) -> None:
        self.board = board
        self.rules = rules
        self.now = now
        self._work = work or {}
        self._otherwise = otherwise
        self._return = return_seconds
        self._heard = heard
        self._ended = ended
        self._courses: dict[str, _Course] = {}
        self._parked: dict[str, float] = {}  # work left
        self._events: list[tuple[float, int, str]] = []
        self._count = 0
        for running in board.running.values():
            done = (now - running.started) * running.eighths / running.asked.share.eighths_per_card
            self._run(running, max(0.0, self._whole(running.session) - done))

    def decide(self) -> list[Action]:
        """Decide now; what is to be done has happened when this returns."""
        actions = decide(self.board, self.rules, self.now)
        for action in actions:
            if isinstance(action, Notice):
                self._push(action.due, "")
            elif isinstance(action, Park):
                self._parked[action.session] = self._stop(action.session) + self._return
            elif not isinstance(action, Withdraw) and action.session in self.board.running:
                self._go_on(self.board.running[action.session])
            if self._heard is not None:
                self._heard(self.now, action)
        return actions

    def next_event(self) -> float:
        """When something happens by itself next; infinity where nothing does."""
        while self._events and not self._is_true(self._events[0]):
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else math.inf

    def forward(self, to: float) -> None:
        """Let time pass until `to`, and decide wherever something ends or a notice runs out."""
        while (when := self.next_event()) <= to:
            self.now = max(self.now, when)
            while self._events and self._events[0][0] <= self.now:
                event = heapq.heappop(self._events)
                if event[2] and self._is_true(event):
                    self._end(event[2])
            self.decide()
        self.now = max(self.now, to)

    # -- how sessions get on ---------------------------------------------------------------------------

    def _go_on(self, running: Running) -> None:
        """A session has started, or holds more or less than before."""
        if running.session in self._courses:
            left = self._stop(running.session)
        else:
            left = self._parked.pop(running.session, self._whole(running.session))
        self._run(running, left)

    def _run(self, running: Running, left: float) -> None:
        speed = running.eighths / running.asked.share.eighths_per_card if running.eighths else 1.0
        course = _Course(left, self.now, speed, running.eighths * len(running.cards))
        self._courses[running.session] = course
        self._push(course.since + course.left / course.speed, running.session)
        if running.safe_until > self.now:
            self._push(running.safe_until, "")

    def _stop(self, session: str) -> float:
        """The work that a session has left; what it used until now is counted."""
        course = self._courses.pop(session)
        passed = self.now - course.since
        if self.rules.fair:
            running = self.board.running.get(session)
            asked = running.asked if running is not None else self.board.waiting[session]
            self.board.used(asked.user, course.eighths * passed, self.now, self.rules)
        return max(0.0, course.left - passed * course.speed)

    def _end(self, session: str) -> None:
        self._stop(session)
        running = self.board.end(session)
        if self._ended is not None:
            self._ended(self.now, running)

    def _whole(self, session: str) -> float:
        return self._work.get(session, self._otherwise)

    def _is_true(self, event: tuple[float, int, str]) -> bool:
        """Whether an event still stands: a session that was resized or parked ends at another time."""
        when, _, session = event
        course = self._courses.get(session)
        return not session or (course is not None and course.since + course.left / course.speed == when)

    def _push(self, when: float, session: str) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, session))


def expected_waits(
    board: Board,
    rules: Rules,
    now: float,
    *,
    otherwise: float,
    horizon: float = 7 * 24 * _HOUR,
    until: str | None = None,
    most: int | None = None,
) -> dict[str, float]:
    """Seconds until each who waits will have started, if nobody else comes and all run as long as is known of them,
    `otherwise` where nothing is; who does not start within `horizon` is not in it. `until`: it is enough to know that
    one; `most`: to know so many, those who start first. The board stays as it is."""
    everybody = [*(each.asked for each in board.running.values()), *board.waiting.values()]
    work = {asked.session: asked.seconds for asked in everybody if asked.seconds is not None}
    found: dict[str, float] = {}

    def hear(when: float, action: Action) -> None:
        if isinstance(action, Start) and action.session in board.waiting:
            found.setdefault(action.session, when - now)

    clock = Clockwork(copy.deepcopy(board), rules, now, work=work, otherwise=otherwise, heard=hear)
    clock.decide()
    enough = len(board.waiting) if most is None else min(most, len(board.waiting))
    while until not in found if until is not None else len(found) < enough:
        when = clock.next_event()
        if when > now + horizon:
            break
        clock.forward(when)
    return found


def expected_wait(
    board: Board, rules: Rules, now: float, session: str, *, otherwise: float, horizon: float = 7 * 24 * _HOUR
) -> float | None:
    """Of `expected_waits` that of one; None where it is not within `horizon`. Raises NotFound."""
    if session not in board.waiting:
        raise NotFound(f"Session {session} does not wait.")
    return expected_waits(board, rules, now, otherwise=otherwise, horizon=horizon, until=session).get(session)
