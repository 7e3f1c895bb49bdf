"""One decision: what is to be done now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuspawner.queue.actions import Action, Grow, Notice, Park, Shrink, Start, Withdraw
from gpuspawner.queue.board import Board, Waiting
from gpuspawner.queue.room import Plan, earliest_place, free_place, park_plan, shrink_plan
from gpuspawner.queue.rules import CLASSES, Rules
from gpuspawner.share import FRACTIONS

_NEVER = float("inf")
_NONE: frozenset[str] = frozenset()


def decide(board: Board, rules: Rules, now: float) -> list[Action]:
    """What is to be done now, in that order; the board is afterwards as if all of it had succeeded.

    Each who waits, in the order of the rules, starts where there is room; else where less urgent sessions can spare it;
    else, after their notice, in place of less urgent ones. For the first who can do none of that a card is kept, and
    others go past it only where they do not make it wait longer. What is left goes back to those it was taken from.
    Nobody is taken anything for somebody of the same class, however long that one has waited.
    """
    return _Decision(board, rules, now).run()


@dataclass
class _Decision:
    board: Board
    rules: Rules
    now: float
    actions: list[Action] = field(default_factory=list)
    #: Until when cards are kept for somebody, by uuid.
    kept: dict[str, float] = field(default_factory=dict)
    all_kept: frozenset[str] = frozenset()
    #: Whose notice still stands after this decision.
    standing: set[str] = field(default_factory=set)

    def run(self) -> list[Action]:
        self.board.look(self.now)
        while self._serve():
            self.kept, self.all_kept = {}, _NONE
        for rank in range(len(CLASSES)):
            self._give_back(rank)
        for session in [name for name in self.board.noticed if name not in self.standing]:
            self.board.notify(session, None)
            self.actions.append(Withdraw(session))
        return self.actions

    def _serve(self) -> bool:
        """One pass over who waits; whether somebody was parked, who may have a place elsewhere."""
        done = len(self.actions)
        self._pass()
        return any(isinstance(action, Park) for action in self.actions[done:])

    def _pass(self) -> None:
        blocked = served = 0
        for rank, asked in self.board.in_order(self.rules, self.now):
            # what was taken goes back before the less urgent start
            for more_urgent in range(served, rank):
                self._give_back(more_urgent)
            served = max(served, rank)
            if self._start(asked) or not asked.takes:
                continue
            blocked += 1
            if not self.rules.backfills or blocked > self.rules.window:
                return
            if blocked == 1:
                self._keep(asked)

    # -- one who waits ---------------------------------------------------------------------------------

    def _start(self, asked: Waiting) -> bool:
        """Whether it runs now, or will once the notices that it waits for have run out."""
        barred = self._barred(asked)
        tried = (asked.share, asked.kind, asked.takes, barred)
        if tried in self.board.refused and not self._told(asked, barred):
            return False  # somebody who wants the same was refused just now, and only less can be free since
        plan = self._plan(asked, barred)
        if plan is None:
            self.board.refused.add(tried)
        elif plan.parks:
            self._park_for(asked, plan)
        else:
            self._run_on(asked, plan)
        return plan is not None

    def _plan(self, asked: Waiting, barred: frozenset[str]) -> Plan | None:
        cards = free_place(self.board, asked.share, barred)
        if cards is not None:
            return Plan(cards)
        if not asked.takes:
            return None
        rank = CLASSES.index(asked.kind)
        plan = None
        if self.rules.resizes:
            plan = shrink_plan(self.board, self.rules, asked.share, rank, barred)
        if plan is None and self.rules.parks:
            # those who have been told already are asked first
            plan = self._told(asked, barred) or park_plan(self.board, self.rules, asked.share, rank, self.now, barred)
        return plan

    def _run_on(self, asked: Waiting, plan: Plan) -> None:
        for session, keeps in plan.shrinks:
            self.board.resize(session, keeps, self.now)
            self.actions.append(Shrink(session, keeps, asked.session))
        for session in plan.parks:
            self.board.park(session, self.now)
            self.actions.append(Park(session, asked.session))
        eighths = asked.share.eighths_per_card
        aged = self.rules.rank(asked.kind, self.now - asked.since) < CLASSES.index(asked.kind)
        # or those who had to let it go first would stop it again at once
        safe = self.rules.safe_seconds if aged else 0.0
        self.board.start(asked.session, plan.cards, eighths, self.now, safe)
        self.actions.append(Start(asked.session, plan.cards, eighths))

    def _park_for(self, asked: Waiting, plan: Plan) -> None:
        dues = []
        for session in plan.parks:
            running = self.board.running[session]
            if running.notice is None:
                seconds = self.rules.classes[running.asked.kind].notice_seconds
                due = self.now + seconds
                if seconds:
                    self.actions.append(Notice(session, asked.session, due))
            else:
                due = running.notice[1]  # told once, for whomever it was
            self.board.notify(session, (asked.session, due))
            dues.append(due)
        if all(due <= self.now for due in dues):
            self._run_on(asked, plan)
            return
        self.standing.update(plan.parks)
        # what will be free there is for this one
        self._keep_until(plan.cards, self.now)

    def _told(self, asked: Waiting, barred: frozenset[str]) -> Plan | None:
        """The plan for which others have notice already, if it still is enough."""
        told = self.board.told.get(asked.session)
        if told is None:
            return None
        uuids = dict.fromkeys(uuid for name in told for uuid in self.board.running[name].cards)
        enough = []
        for card in (self.board.cards[uuid] for uuid in uuids if uuid not in barred):
            left = sum(self.board.running[name].eighths for name in told if name in card.sessions)
            if card.free + left >= asked.share.eighths_per_card:
                enough.append(card)
        if len(enough) < asked.share.cards or len({card.node for card in enough}) != 1:
            return None
        return Plan(tuple(card.uuid for card in enough[: asked.share.cards]), (), tuple(told))

    # -- cards that are kept ---------------------------------------------------------------------------

    def _barred(self, asked: Waiting) -> frozenset[str]:
        if not self.kept:
            return asked.never
        if asked.seconds is None:
            return self.all_kept | asked.never
        done = self.now + asked.seconds
        return asked.never.union(uuid for uuid, until in self.kept.items() if done > until)

    def _keep(self, asked: Waiting) -> None:
        cards, when = earliest_place(self.board, asked.share, asked.never)
        if when == _NEVER and self.now - asked.since < self.rules.hold_seconds:
            return
        self._keep_until(cards, when)

    def _keep_until(self, cards: Iterable[str], when: float) -> None:
        for uuid in cards:
            self.kept[uuid] = min(when, self.kept.get(uuid, _NEVER))
        # an infinite time bars those of whom nobody knows how long they run, too
        self.all_kept = frozenset(self.kept)

    # -- what was taken --------------------------------------------------------------------------------

    def _give_back(self, rank: int) -> None:
        """Eighths for the sessions of a class that hold less than they asked for, the longest running first."""
        own = [name for name in self.board.shrunk if self.board.running[name].rank == rank]
        for name in sorted(own, key=lambda each: self.board.running[each].started):
            running = self.board.running[name]
            card = self.board.cards[running.cards[0]]
            wanted = running.asked.share.eighths_per_card
            most = max(each for each in FRACTIONS if each <= min(wanted, running.eighths + card.free))
            if most > running.eighths and card.uuid not in self.kept:
                self.board.resize(name, most, self.now)
                self.actions.append(Grow(name, most))
