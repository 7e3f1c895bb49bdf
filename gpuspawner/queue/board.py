"""The cards, what runs on them and who waits: what the queue decides upon."""

from __future__ import annotations

import bisect
import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpuspawner.errors import Conflict, NotFound
from gpuspawner.queue.rules import CLASSES, Rules
from gpuspawner.share import EIGHTHS_PER_CARD, GPUShare

_NEVER = float("inf")
#: A line is of one class and user; its entries are deadline, time of joining, session.
_Line = tuple[str, str]
_Entry = tuple[float, float, str]
_Order = tuple[float, float, float, float]


@dataclass(slots=True)
class Waiting:
    """Somebody who waits for a share. Times are seconds.

    `since`: when it began to wait; who was parked keeps it. `seconds`: how long it will run with its whole share, as
    far as known. `deadline`: when it wants to be done.
    """

    session: str
    user: str
    kind: str
    share: GPUShare
    since: float
    seconds: float | None = None
    deadline: float | None = None
    parked: bool = False
    #: Cards that its user may not have.
    never: frozenset[str] = frozenset()
    #: Whether others give way for it; else only what is free is for it.
    takes: bool = True

    def meets(self, start: float) -> bool | None:
        """Whether its deadline can be met with a start then; None where nobody can know."""
        if self.deadline is None or self.seconds is None:
            return None
        return start + self.seconds <= self.deadline


@dataclass(slots=True)
class Running:
    """What runs. `eighths` of each of its cards now, `share` what it asked for.

    `ends`: when it will be done at its present size, as far as known. `notice`: who needs its room and when it will be
    parked. `can_park`: whether it can be checkpointed.
    """

    asked: Waiting
    cards: tuple[str, ...]
    eighths: int
    started: float
    ends: float | None = None
    notice: tuple[str, float] | None = None
    can_park: bool = True
    #: Who has waited itself up a class is not parked before.
    safe_until: float = 0.0
    #: Eighths that it cannot be made smaller than now: its memory is in use, or its card allows no change.
    least: int = 0
    #: Its class's place among CLASSES.
    rank: int = field(init=False)

    def __post_init__(self) -> None:
        self.rank = CLASSES.index(self.asked.kind)

    @property
    def session(self) -> str:
        return self.asked.session

    @property
    def missing(self) -> int:
        """Eighths that were taken from it."""
        return self.asked.share.eighths_per_card - self.eighths


@dataclass(slots=True)
class CardRoom:
    """A card that starts may have: its model and node, its free eighths, and the sessions on it."""

    uuid: str
    model: str
    node: str = ""
    free: int = EIGHTHS_PER_CARD
    sessions: dict[str, None] = field(default_factory=dict)
    #: Eighths that sessions of each class hold, by the class's place among CLASSES.
    held: list[int] = field(default_factory=lambda: [0] * len(CLASSES))

    def within_reach(self, rank: int) -> int:
        """Eighths that are free or held by sessions less urgent than `rank`."""
        return self.free + sum(self.held[rank + 1 :])

    def is_model(self, wanted: str | None) -> bool:
        """As `Card.is_model`."""
        return wanted is None or self.model == wanted or self.model.startswith(f"{wanted}-")


class Board:
    """Cards, running and waiting sessions. Every change keeps each card at eight eighths or less."""

    def __init__(self, cards: Iterable[CardRoom]) -> None:
        self.cards = {card.uuid: card for card in cards}
        self.running: dict[str, Running] = {}
        self.waiting: dict[str, Waiting] = {}
        #: Sessions that hold less than they asked for, and those that were given notice.
        self.shrunk: dict[str, None] = {}
        self.noticed: dict[str, None] = {}
        #: For whom others have notice, and who those are.
        self.told: dict[str, dict[str, None]] = {}
        #: What could not be had, by share, class and barred cards, since anything was last freed.
        self.refused: set[tuple[GPUShare, str, bool, frozenset[str]]] = set()
        self._lines: defaultdict[_Line, list[_Entry]] = defaultdict(list)
        self._use: dict[str, tuple[float, float]] = {}
        self._less_used_first: dict[str, float] = {}
        self._safe_until = _NEVER
        self._by_model: dict[str | None, list[CardRoom]] = {}
        self._roomy: list[dict[str, None]] = [{} for _ in range(EIGHTHS_PER_CARD + 1)]
        for card in self.cards.values():
            self._roomy[card.free][card.uuid] = None

    # -- cards -----------------------------------------------------------------------------------------

    def with_room(self, eighths: int) -> Iterator[CardRoom]:
        """Cards with at least so many eighths free, the fullest first."""
        for free in range(eighths, EIGHTHS_PER_CARD + 1):
            for uuid in self._roomy[free]:
                yield self.cards[uuid]

    def of_model(self, wanted: str | None) -> list[CardRoom]:
        """The cards of a model, or all."""
        found = self._by_model.get(wanted)
        if found is None:
            found = self._by_model[wanted] = [card for card in self.cards.values() if card.is_model(wanted)]
        return found

    def on(self, card: CardRoom) -> list[Running]:
        """What runs on a card."""
        return [self.running[session] for session in card.sessions]

    def _take(self, uuids: tuple[str, ...], eighths: int, rank: int) -> None:
        for uuid in uuids:
            card = self.cards[uuid]
            if not 0 <= card.free - eighths <= EIGHTHS_PER_CARD:
                raise Conflict(f"Card {uuid} has {card.free} eighths free, and {eighths} were asked of it.")
        if eighths < 0:
            self.refused.clear()
        for uuid in uuids:
            card = self.cards[uuid]
            del self._roomy[card.free][uuid]
            card.free -= eighths
            card.held[rank] += eighths
            self._roomy[card.free][uuid] = None

    # -- who waits -------------------------------------------------------------------------------------

    def wait(self, asked: Waiting) -> None:
        """Somebody joins the queue. Raises Conflict for one that is there already."""
        if asked.session in self.waiting or asked.session in self.running:
            raise Conflict(f"Session {asked.session} is in the queue already.")
        self.waiting[asked.session] = asked
        self._join(asked)

    def _join(self, asked: Waiting) -> None:
        bisect.insort(self._lines[asked.kind, asked.user], _entry(asked))

    def leave(self, session: str) -> Waiting:
        """Somebody does not wait any more. Raises NotFound."""
        asked = self.waiting.pop(session, None)
        if asked is None:
            raise NotFound(f"Session {session} does not wait.")
        key = asked.kind, asked.user
        line = self._lines[key]
        del line[bisect.bisect_left(line, _entry(asked))]
        if not line:
            del self._lines[key]
        return asked

    def in_order(self, rules: Rules, now: float) -> Iterator[tuple[int, Waiting]]:
        """Who waits and which class it counts as now, in the order in which they are to be served. Sessions may be
        taken off the board while this runs."""
        heads = [self._head(rules, now, key, line[0]) for key, line in self._lines.items()]
        heapq.heapify(heads)
        while heads:
            order, entry, key = heads[0]
            line = self._lines.get(key, [])
            after = bisect.bisect_right(line, entry)
            if after < len(line):
                heapq.heapreplace(heads, self._head(rules, now, key, line[after]))
            else:
                heapq.heappop(heads)
            asked = self.waiting.get(entry[2])
            if asked is not None:
                yield int(order[0]), asked

    def _head(self, rules: Rules, now: float, key: tuple[str, str], entry: _Entry) -> tuple[_Order, _Entry, _Line]:
        deadline, since, _ = entry
        if rules.order == "fifo":
            return (0.0, since, 0.0, 0.0), entry, key
        use = self._less_used_first.get(key[1], -_NEVER) if rules.fair else 0.0
        return (float(rules.rank(key[0], now - since)), deadline, use, since), entry, key

    def look(self, now: float) -> None:
        """It is `now`: what could not be had before may be had where somebody is not safe any more."""
        if now >= self._safe_until:
            self.refused.clear()
            later = [each.safe_until for each in self.running.values() if each.safe_until > now]
            self._safe_until = min(later, default=_NEVER)

    # -- what happens ----------------------------------------------------------------------------------

    def start(self, session: str, cards: tuple[str, ...], eighths: int, now: float, safe: float = 0.0) -> Running:
        """Somebody who waits runs, and is not parked for `safe` seconds. Raises NotFound, Conflict."""
        asked = self.waiting.get(session)
        if asked is None:
            raise NotFound(f"Session {session} does not wait.")
        self._take(cards, eighths, CLASSES.index(asked.kind))
        self.leave(session)
        seconds = asked.seconds
        speed = eighths / asked.share.eighths_per_card
        running = Running(asked, cards, eighths, now, None if seconds is None else now + seconds / speed)
        if safe:
            running.safe_until = now + safe
            self._safe_until = min(self._safe_until, running.safe_until)
        self.running[session] = running
        for uuid in cards:
            self.cards[uuid].sessions[session] = None
        self._note(running)
        return running

    def resize(self, session: str, eighths: int, now: float) -> Running:
        """A session holds `eighths` of each of its cards from now on. Raises NotFound, Conflict."""
        running = self._running(session)
        self._take(running.cards, eighths - running.eighths, running.rank)
        if running.ends is not None:
            running.ends = now + max(0.0, running.ends - now) * running.eighths / eighths
        running.eighths = eighths
        self._note(running)
        return running

    def notify(self, session: str, notice: tuple[str, float] | None) -> None:
        """A session was given notice, or it is void."""
        running = self._running(session)
        self._forget_notice(running)
        running.notice = notice
        if notice is not None:
            self.told.setdefault(notice[0], {})[session] = None
        self._note(running)

    def _forget_notice(self, running: Running) -> None:
        if running.notice is not None:
            told = self.told[running.notice[0]]
            del told[running.session]
            if not told:
                del self.told[running.notice[0]]

    def end(self, session: str) -> Running:
        """A session is over. Raises NotFound."""
        running = self._running(session)
        self._take(running.cards, -running.eighths, running.rank)
        for uuid in running.cards:
            del self.cards[uuid].sessions[session]
        del self.running[session]
        self._forget_notice(running)
        self.shrunk.pop(session, None)
        self.noticed.pop(session, None)
        return running

    def park(self, session: str, now: float) -> Waiting:
        """A session is checkpointed and waits again, as long as it did before."""
        running = self.end(session)
        asked = running.asked
        if running.ends is not None:
            asked.seconds = max(0.0, running.ends - now) * running.eighths / asked.share.eighths_per_card
        asked.parked = True
        self.waiting[session] = asked
        self._join(asked)
        return asked

    def _running(self, session: str) -> Running:
        running = self.running.get(session)
        if running is None:
            raise NotFound(f"Session {session} does not run.")
        return running

    def _note(self, running: Running) -> None:
        for those, is_one in ((self.shrunk, running.missing > 0), (self.noticed, running.notice is not None)):
            if is_one:
                those[running.session] = None
            else:
                those.pop(running.session, None)

    # -- recent use ------------------------------------------------------------------------------------

    def used(self, user: str, eighth_seconds: float, now: float, rules: Rules) -> None:
        """A user has used so much until now."""
        amount = self.use(user, now, rules) + eighth_seconds
        self._use[user] = amount, now
        # all shrink by the same factor as time passes, so that their order is that of log2(amount) + now / half life
        self._less_used_first[user] = math.log2(amount) + now / rules.half_life_seconds if amount else -_NEVER

    def use(self, user: str, now: float, rules: Rules) -> float:
        """Eighth-seconds that a user has used, past ones counted less."""
        amount, at = self._use.get(user, (0.0, now))
        return amount * 0.5 ** (max(0.0, now - at) / rules.half_life_seconds) if amount else 0.0


def _entry(asked: Waiting) -> _Entry:
    return _NEVER if asked.deadline is None else asked.deadline, asked.since, asked.session
