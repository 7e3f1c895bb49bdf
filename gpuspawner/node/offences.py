"""What somebody did before on a card: it counts for an hour, whichever session it was in.

By user and card, so that a session that is started anew brings no new time of grace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

#: For so long offences count: what was spent of the grace is not given again, and who had a process ended has none
#: left, and sees the notice. Seconds.
REMEMBERED = 3600.0
#: A session in which so many processes of its user were ended within that time is ended itself.
MOST_ENDED = 10
#: The ledger is told of a session's offences once in so many seconds: they may come and go as often as a session likes.
TOLD_AGAIN = 600.0
#: Seconds within which what is spent is noted as one.
_TOGETHER = 60.0


@dataclass(frozen=True)
class Notice:
    """Something that a session's user should know. Times are seconds since the epoch; `deadline` where something
    will be done."""

    code: Literal["over_limit", "over_compute", "frozen", "process_ended", "shrunk", "card_failed"]
    message: str
    since: float
    deadline: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What was seen or done, for the ledger. `hopeless`: the session is to be ended."""

    session: str
    reason: str
    hopeless: bool = False


@dataclass
class Past:
    """Of one user on one card: when processes were ended, by the clock of `Offences`, and how many seconds of grace are
    spent, each with the moment at which that was noted."""

    ended: list[float] = field(default_factory=list)
    spent: list[tuple[float, float]] = field(default_factory=list)

    def grace(self, seconds: float) -> float:
        """What is left of a time of grace; nothing for who had a process ended."""
        return 0.0 if self.ended else max(0.0, seconds - sum(each for _, each in self.spent))

    def give_back(self, seconds: float) -> None:
        """Take back so much of what is spent, the last first."""
        while seconds > 0 and self.spent:
            at, last = self.spent.pop()
            if last > seconds:
                self.spent.append((at, last - seconds))
            seconds -= last


class Offences:
    """The past of users on cards, and what of it their sessions are told. Not thread-safe.

    `clock`: seconds that are never set back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._past: defaultdict[tuple[str, str], Past] = defaultdict(Past)
        self._told: dict[tuple[str, str], float] = {}
        self._notices: dict[str, tuple[float, Notice]] = {}

    def of(self, user: str, card: str) -> Past:
        """What a user did on a card within the hour."""
        return self._past[user, card]

    def known(self) -> dict[tuple[str, str], Past]:
        """Everybody's, by user and card."""
        return dict(self._past)

    def spend(self, user: str, card: str, seconds: float) -> None:
        """So much of the user's grace on the card is gone."""
        spent, now = self._past[user, card].spent, self._clock()
        if spent and now - spent[-1][0] < _TOGETHER:
            spent[-1] = (spent[-1][0], spent[-1][1] + seconds)
        else:
            spent.append((now, seconds))

    def ended(self, user: str, card: str, notice: Notice, session: str) -> int:
        """A process was ended; how many it were of that user on that card within the hour."""
        past = self._past[user, card]
        past.ended.append(self._clock())
        self._notices[session] = (self._clock(), notice)
        return len(past.ended)

    def to_tell(self, session: str, card: str) -> bool:
        """Whether the ledger should hear of the session on that card now. It counts as told then."""
        at = self._told.get((session, card))
        if at is not None and self._clock() - at < TOLD_AGAIN:
            return False
        self._told[session, card] = self._clock()
        return True

    def notices(self, session: str) -> list[Notice]:
        """What was done to the session last."""
        return [self._notices[session][1]] if session in self._notices else []

    def forget(self, live: Collection[str]) -> None:
        """What is older than an hour, and what only concerns sessions that have ended."""
        since = self._clock() - REMEMBERED
        for key, past in list(self._past.items()):
            past.ended = [at for at in past.ended if at > since]
            past.spent = [(at, seconds) for at, seconds in past.spent if at > since]
            if not past.ended and not past.spent:
                del self._past[key]
        self._told = {key: at for key, at in self._told.items() if key[0] in live}
        self._notices = {
            session: (at, notice) for session, (at, notice) in self._notices.items() if session in live and at > since
        }
