"""Keeps the queue: takes who must wait, has `gpuspawner.queue` decide, and carries out what it says.

Everything that is decided is written down before it is done, so that a service that is killed in between finds what it
began: what a session asked for before it is made smaller, and who waits until it has its share. What is in force is
asked of the fleet anew for each decision.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from gpuspawner.errors import Conflict, GPUSpawnerError, NotFound
from gpuspawner.fleet.base import Fleet, Notice
from gpuspawner.fleet.placement import place
from gpuspawner.queue import Action, Board, Grow, Park, Shrink, Start, Withdraw, decide
from gpuspawner.queue import Notice as GiveNotice
from gpuspawner.service.policy.book import Book
from gpuspawner.service.policy.budgets import Budgets
from gpuspawner.service.store import LIVE, Asked, Store
from gpuspawner.service.tables import SessionRow
from gpuspawner.service.waiting import moves
from gpuspawner.service.waiting.entries import Entries, Entry, Wish
from gpuspawner.service.waiting.outlook import Outlook
from gpuspawner.service.waiting.parker import Parker
from gpuspawner.service.waiting.parkings import Parking
from gpuspawner.service.waiting.scene import Scene, scene, use_of
from gpuspawner.service.waiting.servers import Servers
from gpuspawner.service.waiting.telling import Steady
from gpuspawner.service.waiting.use import recent_use
from gpuspawner.share import GPUShare

log = logging.getLogger(__name__)

#: More than can wait in any sense; a storm ends here.
MOST = 10_000
#: Who is not asked about for so long is not placed, since its hub may be gone; and after so long it is forgotten.
FRESH, FORGOTTEN = 30.0, 600.0
#: A session that could not be changed is left alone for so long.
_UNWILLING = 10.0
#: How often what everybody used is found out anew.
_USE_EVERY = 60.0
_TRIES = 4
_GONE_KEPT = 1000


class House(Protocol):
    """What the clerk needs of the service."""

    fleet: Fleet
    store: Store
    book: Book
    budgets: Budgets

    def resize(self, session: str, share: GPUShare, actor: str, reason: str | None = None) -> SessionRow:
        """Change a running session's share."""
        ...


class Clerk:
    """The queue of one service. Thread-safe. No lock of a session's or a user's is taken before this one's but a
    user's, and no user's after it."""

    def __init__(self, house: House, wake: Callable[[], None] = lambda: None, servers: Servers | None = None) -> None:
        self._house = house
        self._wake = wake
        self.entries = Entries(house.store.engine)
        self.lock = threading.RLock()
        self.clock = Steady()
        self.parker = Parker(house, lambda: self.clock(), servers)
        self.rules = self.parker.rules()
        self._seen: dict[str, float] = {}
        #: Who takes only what is free now, and does not wait.
        self._passing: set[str] = set()
        self._unwilling: dict[str, float] = {}
        self._gone: OrderedDict[str, str] = OrderedDict()
        self.outlook = Outlook(self)
        self._use: dict[str, float] = {}
        self._next_use = 0.0
        #: Decisions begun; who joined before the last one began need not have another.
        self._decisions = 0
        self._deciding = threading.Lock()

    # -- who comes and goes ----------------------------------------------------------------------------

    def recall(self) -> None:
        """Take over what an earlier service left."""
        with self.lock:
            self.entries.recall()
            self.outlook.recall()
            self.parker.recall()
            self.clock = Steady(max(self.entries.newest_ms, self.parker.rows.newest_ms) / 1000)
            now = time.monotonic()
            live = {row.id for row in self._house.store.sessions(states=LIVE)}
            for row in self.entries:
                self._seen[row.id] = now - FRESH  # known, and not placed before its hub asks again
                if row.state == "waiting" and row.id in live:
                    self.entries.change(row.id, state="placed")
                elif row.state != "waiting" and row.id not in live:
                    self.entries.remove(row.id)

    @property
    def anybody(self) -> bool:
        """Whether somebody waits."""
        return self.entries.anybody

    def join(
        self,
        user: str,
        server: str,
        share: GPUShare,
        kind: str,
        wish: Wish,
        *,
        card: str | None,
        burst: bool,
        environment: str | None,
    ) -> Entry:
        """Somebody waits from now on, or the same one as before. Raises Conflict where the queue is full."""
        asked = {
            "share": str(share),
            "kind": kind,
            "card": card,
            "burst": burst,
            "environment": environment,
            "run_seconds": wish.run_seconds,
            "deadline_ms": wish.deadline_ms,
        }
        with self.lock:
            row = self.entries.of(user, server)
            # what others have made of it is not what its hub asked for
            same = {**asked, "kind": row.kind, "deadline_ms": row.deadline_ms} if row and row.changed_by else asked
            if row is not None and all(getattr(row, name) == value for name, value in same.items()):
                self._seen[row.id] = time.monotonic()
                return row
            if row is not None:
                self.leave(row.id, "It was replaced by another wish for the same server.", gives_up=False)
            if len(self.entries) >= MOST:
                raise Conflict("The queue is full. Try again later.", code="no_room")
            session = f"s-{secrets.token_hex(6)}"
            parked = self.parker.rows.parked(user, server)
            since = max(round(self.clock() * 1000), self.entries.newest_ms) if parked is None else parked.since_ms
            row = self.entries.add(id=session, user=user, server=server, state="waiting", since_ms=since, **asked)
            if not wish.wait:
                self._passing.add(session)
            self._seen[session] = time.monotonic()
            return row

    def leave(self, session: str, why: str, *, gives_up: bool = True) -> bool:
        """Somebody does not wait any more; whether it did. `gives_up`: one that was parked is not to come back."""
        with self.lock:
            row = self.entries.get(session)
            if row is None or row.state != "waiting":
                return False
            self._forget(session, why)
            if gives_up:
                self.parker.give_up(row.user, row.server)
        self._wake()
        return True

    def prioritise(self, session: str, by: str, why: str, **values: Any) -> Entry:
        """Set the class (`kind`) or the deadline (`deadline_ms`) of somebody who waits; the others are placed anew at
        once. Raises NotFound, Conflict where it does not wait any more."""
        with self.lock:
            row = self.entries.get(session)
            if row is None:
                raise NotFound(self.why_gone(session) or "There is nobody of that name in the queue.")
            if row.state != "waiting":
                raise Conflict("It has its share already.", code="not_waiting", field="session", given=session)
            if any(getattr(row, name) != value for name, value in values.items()):
                # what was expected of it was so for its place before
                self.entries.change(session, forecast_seconds=None, changed_by=by, changed_why=why, **values)
                log.info("session %s: %s by %s (%s)", session, values, by, why)
        self.decide()
        return row

    def _forget(self, session: str, why: str) -> None:
        self.entries.remove(session)
        self._seen.pop(session, None)
        self._passing.discard(session)
        self.outlook.forget(session)
        self._gone[session] = why
        while len(self._gone) > _GONE_KEPT:
            self._gone.popitem(last=False)

    def why_gone(self, session: str) -> str | None:
        """Why somebody does not wait any more."""
        return self._gone.get(session)

    def seen(self, session: str) -> None:
        """Its hub asks for it."""
        before = self._seen.get(session)
        self._seen[session] = time.monotonic()
        if before is not None and time.monotonic() - before > FRESH / 2:
            self._wake()

    def remember(self, session: SessionRow, wish: Wish) -> None:
        """What a session that did not have to wait says of how long it will run."""
        if wish.run_seconds is None and wish.deadline_ms is None:
            return
        with self.lock:
            self._note_running(session, session.share, run_seconds=wish.run_seconds, deadline_ms=wish.deadline_ms)

    def _note_running(self, session: SessionRow, share: str, **more: Any) -> None:
        """Keep of a session that runs that it asked for `share`."""
        self.entries.add(
            id=session.id,
            user=session.user,
            server=session.server,
            state="running",
            kind=session.kind,
            share=share,
            since_ms=session.created_ms,
            burst=session.burst,
            **more,
        )

    def give_back(self, session: str, share: GPUShare) -> None:
        """A session that was made smaller for another reason is to have `share` again as soon as there is room."""
        with self.lock:
            row, known = self.entries.get(session), self._house.store.session(session)
            if row is not None:
                self.entries.change(session, share=share.amount, taken_by="nobody", taken_ms=None)
            elif known is not None and known.state in LIVE:
                self.entries.add(
                    id=session,
                    user=known.user,
                    server=known.server,
                    state="running",
                    kind=known.kind,
                    share=share.amount,
                    since_ms=known.created_ms,
                    burst=known.burst,
                    taken_by="nobody",
                )
        self.decide()

    def notices(self, session: SessionRow) -> list[Notice]:
        """That a session was made smaller for somebody more urgent."""
        found = self.parker.notices(session.id)
        row = self.entries.get(session.id)
        if row is None or row.taken_by is None or row.taken_ms is None:
            return found
        message = (
            f"Made smaller to {session.share} of the card because more urgent work needs the rest. It grows back to "
            f"{GPUShare.parse(row.share).amount} by itself when there is room. Kernels go on."
        )
        return [*found, Notice("made_smaller", message, row.taken_ms / 1000)]

    def is_placed(self, session: str) -> bool:
        """Whether a session was started from the queue and its hub has not fetched it yet."""
        row = self.entries.get(session)
        return row is not None and row.state == "placed"

    def started(self, session: str) -> None:
        """The hub has fetched how to start it."""
        with self.lock:
            self.entries.change(session, state="running")

    def ended(self, session: str) -> None:
        """A session is over: what it held is free, or will be."""
        with self.lock:
            self.entries.remove(session)
        if self._busy:
            self._wake()

    def chose(self, session: str, share: GPUShare) -> None:
        """A session's own user, a budget or idleness has changed its share: that is what it asks for now."""
        row = self.entries.get(session)
        if row is not None and row.state != "waiting":
            with self.lock:
                self.entries.change(session, share=str(share), taken_by=None)
        if self._busy:
            self._wake()

    @property
    def _busy(self) -> bool:
        taken = any(row.taken_by is not None for row in self.entries)
        return taken or self.entries.anybody or self.parker.busy

    # -- deciding --------------------------------------------------------------------------------------

    def look(self) -> None:
        """Decide where there is anything to decide."""
        now = time.monotonic()
        with self.lock:
            for row in self.entries.waiting():
                if now - self._seen.setdefault(row.id, now) > FORGOTTEN:
                    log.info("session %s waits no more: nobody asks for it", row.id)
                    self._forget(row.id, "Nobody asked for it any more.")
            self.parker.look()
            self.parker.free_of_cards(self.entries)
            self.rules = self.parker.rules()
        if self._busy:
            self.decide()
        self.outlook.look()

    def decide(self, *, joined: bool = False) -> None:
        """Decide now, and do what is to be done. `joined`: for somebody who has just come; where others have begun a
        decision since, that one was for all."""
        at = self._decisions
        with self._deciding:
            if joined and self._decisions > at:
                return
            self._decisions += 1
            with self.lock:
                for _ in range(_TRIES):
                    if self._decide_once():
                        break

    def scene(self, *, forecast: bool = False) -> Scene:
        """Cards, what runs, and who waits now. With the lock held. `forecast`: to run ahead from."""
        now = time.monotonic()
        self._unwilling = {name: until for name, until in self._unwilling.items() if until > now}
        waiting, aside = [], {}
        for row in self.entries.waiting():
            rests = self.parker.rests(row.user, row.server)
            if rests is not None:
                aside[row.id] = rests
            elif now - self._seen.get(row.id, 0.0) < FRESH:
                try:
                    if self._house.budgets.any:
                        self._house.budgets.check(row.user)
                    waiting.append(row)
                except GPUSpawnerError as error:
                    aside[row.id] = error.message
            else:
                aside[row.id] = "Its hub has not asked for it for a while."
        live = self._house.store.sessions(states=LIVE)
        rows = {row.id: row for row in self.entries if row.state != "waiting"}
        found = scene(self._house.fleet, self._house.book, live, rows, waiting, self.clock(), self._unwilling.keys())
        for session in self._passing & found.board.waiting.keys():
            found.board.waiting[session].takes = False
        found.aside.update(aside)
        self.parker.mark(found.board, live, forecast=forecast)
        if self.rules.fair and len({row.user for row in waiting}) > 1:
            use_of(found.board, self.rules, self._recent_use(), self.clock())
        return found

    def _recent_use(self) -> dict[str, float]:
        if time.monotonic() >= self._next_use:
            self._use = recent_use(self._house.store.engine, time.time(), self.rules)
            self._next_use = time.monotonic() + _USE_EVERY
        return self._use

    def _decide_once(self) -> bool:
        """One decision, carried out; whether there is no need for another one now."""
        found, now = self.scene(), self.clock()
        actions = decide(found.board, self.rules, now)
        parks = False
        for action in actions:
            if isinstance(action, Park):
                self.parker.stop(action.session)
                parks = True
            elif parks or not self._do(action, found):
                return False  # the place of who is parked is free once it has gone
        self.parker.follow(found.board)
        self._place_on_slices(found)
        self.outlook.note(found, now)
        return True

    def _do(self, action: Action, found: Scene) -> bool:
        try:
            if isinstance(action, Start):
                row = self.entries.get(action.session)
                if row is not None:
                    self._put(row, action.cards[0] if len(action.cards) == 1 else None)
            elif isinstance(action, Shrink):
                self._shrink(action, found.board)
            elif isinstance(action, Grow):
                self._house.resize(
                    action.session, GPUShare(action.eighths), "queue", "what was taken from it is given back"
                )
                if not found.board.running[action.session].missing:
                    self.entries.change(action.session, taken_by=None)
            elif isinstance(action, GiveNotice):
                self._notify(action, found.board)
            elif isinstance(action, Withdraw):
                self.parker.withdraw(action.session)
        except GPUSpawnerError as error:
            log.info("%s could not be done: %s", action, error.message)
            self._unwilling[action.session] = time.monotonic() + _UNWILLING
            return False
        return True

    def _shrink(self, action: Shrink, board: Board) -> None:
        """What it asked for is written down first: it is given that back."""
        running = board.running[action.session]
        taken_ms = round(self.clock() * 1000)
        row = self.entries.get(action.session)
        if row is None:
            session = self._house.store.session(action.session)
            if session is None:
                raise NotFound("This session has ended.")
            self._note_running(session, running.asked.share.amount, taken_by=action.wanted_by, taken_ms=taken_ms)
        else:
            asked = running.asked.share.amount
            self.entries.change(row.id, share=asked, taken_by=action.wanted_by, taken_ms=taken_ms)
        reason = f"made smaller for {action.wanted_by}, which is more urgent"
        self._house.resize(action.session, GPUShare(action.eighths), "queue", reason)

    def _notify(self, action: GiveNotice, board: Board) -> None:
        """It is asked to save, and then keeps the place that it had when it came."""
        running, row = board.running[action.session], self.entries.get(action.session)
        seconds = self.rules.classes[running.asked.kind].notice_seconds
        since = None if row is None else row.since_ms
        self.parker.notify(action.session, action.wanted_by, seconds, running.asked.share.amount, since)

    def park_for_budget(self, session: SessionRow) -> None:
        """Its user's budget is used up: it is asked to save, and stopped when it has."""
        with self.lock:
            row = self.entries.get(session.id)
            self.parker.ask_for_budget(session, self.rules, None if row is None else row.since_ms)

    def asked_share(self, session: SessionRow) -> GPUShare:
        """What a session that runs asks for; it may hold less now."""
        row = self.entries.get(session.id)
        return GPUShare.parse(GPUShare.parse(session.share if row is None else row.share).amount)

    def park(self, session: SessionRow, by: str, why: str, rest: float = 0.0, card: str | None = None) -> Parking:
        """An administrator has a session saved and stopped. It comes back by itself, not before `rest` seconds, and on
        `card` alone where one is named. Raises Conflict, NotFound, Forbidden."""
        with self.lock:
            share = self.asked_share(session)
            if card is not None:
                moves.check(share, self._house.fleet, session.id, self._house.book.view(session.user), card)
            row = self.entries.get(session.id)
            since = None if row is None else row.since_ms
            return self.parker.ask_by_hand(session, self.rules, share.amount, since, by, why, rest, card=card)

    def release(self, session: str) -> Parking:
        """What an administrator has asked of a session is taken back. Raises NotFound, Conflict."""
        with self.lock:
            row = self.parker.release(session)
        self._wake()
        return row

    def errands(self) -> None:
        """Ask the hub for what parking needs of it."""
        if self.parker.on and len(self.parker.rows):
            self.parker.errands(self.lock, self._asked_for)

    def _asked_for(self, user: str, server: str) -> bool:
        """Whether a user's server waits here, and its hub has asked for it of late."""
        row = self.entries.of(user, server)
        return row is not None and time.monotonic() - self._seen.get(row.id, 0.0) < FRESH

    def answer(self, session: str, notice: str, saved: bool, said: str) -> Parking:
        """What a session says to its notice; what is under way with it then. Raises Conflict."""
        with self.lock:
            row = self.parker.answer(session, notice, saved, said)
        self._wake()
        return row

    def _put(self, row: Entry, card: str | None) -> None:
        """Give somebody who waits its share. Raises as the fleet's start does."""
        share = GPUShare.parse(row.share)
        grant, _ = self._house.fleet.start(row.id, row.user, share, card, burst=row.burst, server=row.server)
        waited = max(0.0, self.clock() - row.since_ms / 1000)
        try:
            reason = f"started from the queue after {waited:.0f} s" if waited >= 1 else "started"
            asked = Asked(row.since_ms, row.run_seconds, row.deadline_ms)
            self._house.store.started(grant, row.user, row.server, share, "hub", reason, row.kind, asked)
        except Exception:
            self._house.fleet.end(row.id, "it could not be written down")
            raise
        self.entries.change(row.id, state="placed")
        self.entries.waited(row, waited)
        self.outlook.over(row, waited)

    def _place_on_slices(self, found: Scene) -> None:
        """Who fits on cards that are cut into slices starts there, in order; nobody gives way on those."""
        if not found.cut:
            return
        for _, asked in list(found.board.in_order(self.rules, self.clock())):
            row = self.entries.get(asked.session)
            if row is None:
                continue
            with contextlib.suppress(GPUSpawnerError):
                barred = self._house.book.barred(row.user, asked.share, row.environment, found.cut)
                cards = [state for state in found.cut if state.card.uuid not in barred]
                where = place(asked.share, cards, row.card)
                self._put(row, where[0] if len(where) == 1 else None)
                found.board.leave(asked.session)
