"""Parks sessions for the more urgent: notice, checkpoint, stop, and back again when there is room.

What is to be done next follows from the row of a parking alone, and each step is written down before it is taken. So a
service that is killed in between takes the same step again, which then does nothing twice: a notice that is shown
already is not shown anew, a server that is stopped is not stopped again. Nobody is stopped who has not said that it is
saved.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from gpuspawner.errors import Conflict, GPUSpawnerError, NotFound
from gpuspawner.fleet.base import Fleet, Notice
from gpuspawner.queue import STANDARD, Board, Rules
from gpuspawner.service.policy.book import Book
from gpuspawner.service.policy.budgets import Budgets
from gpuspawner.service.policy.schema import REST_MINUTES
from gpuspawner.service.store import LIVE, Store
from gpuspawner.service.tables import SessionRow
from gpuspawner.service.waiting.entries import Entries
from gpuspawner.service.waiting.parkings import Parking, Parkings
from gpuspawner.service.waiting.servers import HubRefuses, Servers
from gpuspawner.share import GPUShare

log = logging.getLogger(__name__)

_NEVER = float("inf")
#: Instead of the session for which another one is parked. For these it is stopped as soon as it is saved.
BUDGET, ADMIN = "budget", "admin"
_ANYWAY = (BUDGET, ADMIN)
#: Seconds until the hub is asked again to stop a server; and to start one that is in no queue.
_STOP_AGAIN, _START_AGAIN = 10.0, 30.0
_AT_ONCE = 8


class _House(Protocol):
    fleet: Fleet
    store: Store
    book: Book
    budgets: Budgets


class Parker:
    """What is under way with parkings. `servers`: of the hub; None: nobody is parked. `clock`: seconds that never go
    back. All methods but `errands` are called with the clerk's lock held."""

    def __init__(self, house: _House, clock: Callable[[], float], servers: Servers | None = None) -> None:
        self._house = house
        self._clock = clock
        self.servers = servers
        self.rows = Parkings(house.store.engine)
        #: Notices that are shown by this process's doing; and when the hub is asked next, by the monotonic clock.
        self._shown: set[str] = set()
        self._next: dict[str, float] = {}

    @property
    def on(self) -> bool:
        """Whether anybody is parked here at all."""
        return self.servers is not None and self._house.fleet.tells

    @property
    def busy(self) -> bool:
        """Whether a session that runs is on its way to be parked."""
        return any(row.state != "parked" for row in self.rows)

    def recall(self) -> None:
        """Take over what an earlier service left. A notice that was void is shown no longer."""
        self.rows.recall()
        self._shown.clear()
        if self.on:
            for session in self._house.store.sessions(states=LIVE):
                if self.rows.get(session.id) is None:
                    self._show(session.id, None)

    # -- what the decision needs -----------------------------------------------------------------------

    def rules(self) -> Rules:
        """The rules of the queue by the policy in force."""
        if not self.on:
            return replace(STANDARD, parks=False)
        classes = dict(STANDARD.classes)
        for each in self._house.book.source.current.file.parking:
            notice, floor = float(each.notice_seconds), GPUShare.parse(each.floor).eighths
            classes[each.kind] = replace(classes[each.kind], parks=each.park, notice_seconds=notice, floor=floor)
        return replace(STANDARD, classes=classes)

    def mark(self, board: Board, sessions: Iterable[SessionRow], *, forecast: bool = False) -> None:
        """Put on a board who may be parked and who has notice. One that is not saved is never due, but in a
        `forecast`."""
        if not self.on:
            return
        states = {row.id: row.state for row in sessions}
        now = self._clock()
        for session, running in board.running.items():
            row = self.rows.get(session)
            asked = running.asked
            rested = states.get(session) == "running" and self._rested(asked.user, asked.kind, now)
            running.can_park = row is None and rested
            if row is None or row.wanted_by in _ANYWAY:
                continue
            if row.state == "stopping" and row.wanted_by not in board.waiting:
                continue
            due = 0.0 if row.state == "saved" else max(now, row.due_ms / 1000) if forecast else _NEVER
            running.can_park = row.state in ("noticed", "saved")
            board.notify(session, (row.wanted_by, due))

    def _rested(self, user: str, kind: str, now: float) -> bool:
        last = self.rows.last_notice.get(user)
        given = self._house.book.source.current.file.parking
        rest = next((each.rest_minutes for each in given if each.kind == kind), REST_MINUTES)
        return last is None or now - last / 1000 >= rest * 60

    def follow(self, board: Board) -> None:
        """After a decision: for whom notices are now. A notice is given once, for whoever needs the room in the end."""
        for session in board.noticed:
            row, notice = self.rows.get(session), board.running[session].notice
            if row is not None and notice is not None and row.wanted_by != notice[0]:
                self.rows.change(row, wanted_by=notice[0])

    # -- steps -----------------------------------------------------------------------------------------

    def notify(
        self, session: str, wanted_by: str, seconds: float, share: str, since_ms: int | None = None, **more: Any
    ) -> Parking:
        """Give a session notice; `more`: other values of the row. Raises NotFound, Conflict where it has one."""
        known = self._house.store.session(session)
        if known is None or known.state not in LIVE:
            raise NotFound("This session has ended.")
        if self.rows.get(session) is not None:
            raise Conflict("This session has notice already.")
        now = max(round(self._clock() * 1000), self.rows.newest_ms)
        row = Parking(
            id=f"p-{secrets.token_hex(6)}",
            session=session,
            user=known.user,
            server=known.server,
            state="noticed",
            kind=known.kind,
            share=share,
            since_ms=known.created_ms if since_ms is None else since_ms,
            wanted_by=wanted_by,
            noticed_ms=now,
            due_ms=now + round(seconds * 1000),
            **more,
        )
        self.rows.add(row)
        log.info("session %s is asked to save within %.0f s for %s", session, seconds, wanted_by)
        self._tell(row)
        return row

    def ask_for_budget(self, session: SessionRow, rules: Rules, since_ms: int | None) -> None:
        """Give a session notice because its user's budget is used up, unless it has one or rests."""
        if self.rows.get(session.id) is None and self._rested(session.user, session.kind, self._clock()):
            seconds = rules.classes[session.kind].notice_seconds
            self.notify(session.id, BUDGET, seconds, session.share, since_ms)

    def why_not(self, session: SessionRow) -> str | None:
        """Why nobody can park a session by hand now; None where that can be done."""
        if self.servers is None:
            return "Parking is switched off here (GPUSPAWNER_PARKING)."
        if not self._house.fleet.tells:
            return "Servers on a cluster cannot be asked to save."
        if session.state != "running":
            return "It does not run yet." if session.state == "starting" else "It is ending."
        if not json.loads(session.cards):
            return "It holds no card."
        row = self.rows.get(session.id)
        return None if row is None else "It is being stopped." if row.state == "stopping" else "It has notice already."

    def ask_by_hand(
        self,
        session: SessionRow,
        rules: Rules,
        share: str,
        since_ms: int | None,
        by: str,
        why: str,
        rest: float,
        **more: Any,
    ) -> Parking:
        """Give a session notice because an administrator says so; it does not come back before `rest` seconds are
        over, counted from now. Raises Conflict."""
        reason = self.why_not(session)
        if reason is not None:
            raise Conflict(reason, code="cannot_park", field="session", given=session.id)
        back = round((self._clock() + rest) * 1000) if rest else None
        seconds = rules.classes[session.kind].notice_seconds
        return self.notify(session.id, ADMIN, seconds, share, since_ms, asked_by=by, why=why, back_ms=back, **more)

    def release(self, session: str) -> Parking:
        """An administrator takes back what one has asked: its notice is void, or it comes back as soon as there is
        room. Raises NotFound, Conflict."""
        row = self.rows.get(session)
        if row is None:
            raise NotFound("It was not asked to save, or it is back.", field="session", given=session)
        if row.wanted_by != ADMIN:
            raise Conflict("No administrator has asked for it, so none can take it back.", code="not_by_hand")
        if row.state == "stopping":
            raise Conflict("It is being stopped. Once it is parked, it can be let back.", code="stopping")
        if row.state == "parked":
            self.rows.change(row, back_ms=None)
        else:
            self._over(row, "void")
        return row

    def rests(self, user: str, server: str) -> str | None:
        """Why a user's server that is parked does not come back yet; None where it may."""
        row = self.rows.parked(user, server)
        if row is None or row.back_ms is None or self._clock() * 1000 >= row.back_ms:
            return None
        return f"Parked by {row.asked_by} until {_clock(row.back_ms)}: {sentence(row.why)}"

    def _tell(self, row: Parking) -> None:
        due = datetime.fromtimestamp(row.due_ms / 1000, UTC).isoformat(timespec="milliseconds")
        self._show(row.session, json.dumps({"format": 1, "notice": row.id, "due": due}))
        self._shown.add(row.id)

    def _show(self, session: str, text: str | None) -> None:
        try:
            self._house.fleet.tell(session, text)
        except (GPUSpawnerError, OSError) as error:
            log.warning("session %s could not be told: %s", session, error)

    def withdraw(self, session: str) -> None:
        """Nobody needs its room any more."""
        row = self.rows.get(session)
        if row is not None and row.state in ("noticed", "saved"):
            self._over(row, "void")

    def _over(self, row: Parking, state: str, said: str | None = None) -> None:
        self.rows.change(row, state=state, said=row.said if said is None else said)
        self._show(row.session, None)
        self._shown.discard(row.id)
        self._next.pop(row.id, None)

    def answer(self, session: str, notice: str, saved: bool, said: str) -> Parking:
        """What a session says to its notice. Raises Conflict where nobody asks that any more."""
        row = self.rows.get(session)
        if row is None or row.id != notice or row.state not in ("noticed", "saved"):
            raise Conflict("This notice is void: the session goes on.", code="void", field="notice", given=notice)
        if not saved:
            log.info("session %s could not save: %s", session, said)
            self._over(row, "failed", said)
        elif row.state == "noticed":
            self.rows.change(row, state="saved", said=said)
        return row

    def stop(self, session: str) -> None:
        """Its server is to be stopped: it has said that it is saved."""
        row = self.rows.get(session)
        if row is not None and row.state == "saved":
            self.rows.change(row, state="stopping")

    def look(self) -> None:
        """Take notice of what time and fleet bring."""
        now_ms = self._clock() * 1000
        for row in self.rows.all_missed():
            known = self._house.store.session(row.session)
            if known is None or known.state not in LIVE:
                self.rows.forget(row)
        for row in self.rows:
            known = self._house.store.session(row.session)
            live = known is not None and known.state in LIVE
            if row.state == "stopping" and not live:
                self.rows.change(row, state="parked")
                self._next.pop(row.id, None)
            elif row.state in ("noticed", "saved") and not live:
                self._over(row, "void")
            elif row.state == "saved" and row.wanted_by in _ANYWAY:
                self.rows.change(row, state="stopping")
            elif row.state == "noticed" and now_ms >= row.due_ms:
                log.warning("session %s did not say within its time that it is saved, and runs on", row.session)
                self._over(row, "silent")
            elif row.state == "noticed" and row.id not in self._shown:
                self._tell(row)
            elif row.state == "parked" and self._runs(row.user, row.server):
                self._over(row, "returned")

    def free_of_cards(self, entries: Entries) -> None:
        """Who was to come back on a card that is out of use comes back on any."""
        for row in self.rows:
            if row.card is None or row.state != "parked":
                continue
            states = self._house.fleet.cards([row.card])
            if states and states[0].health.state != "failed" and not states[0].cordoned:
                continue
            log.warning("session %s comes back on any card: %s is out of use", row.session, row.card)
            self.rows.change(row, card=None)
            entry = entries.of(row.user, row.server)
            if entry is not None:
                entries.change(entry.id, card=None)

    def _runs(self, user: str, server: str) -> bool:
        live = self._house.store.live(user, server)
        return live is not None and live.state == "running"

    def give_up(self, user: str, server: str) -> None:
        """Its user does not want to wait for it to come back."""
        row = self.rows.parked(user, server)
        if row is not None:
            self._over(row, "given_up")

    # -- what the hub is asked -------------------------------------------------------------------------

    def errands(self, guard: contextlib.AbstractContextManager[Any], in_queue: Callable[[str, str], bool]) -> None:
        """Ask the hub to stop and start what is to be stopped and started. Takes `guard`, the clerk's lock, by itself,
        and never while the hub is asked. `in_queue`: whether somebody waits for a user's server already."""
        now = time.monotonic()
        with guard:
            due = [
                row
                for row in self.rows
                if row.state in ("stopping", "parked")
                and now >= self._next.get(row.id, 0.0)
                and not (row.state == "parked" and in_queue(row.user, row.server))
            ]
            for row in due:
                self._next[row.id] = now + (_STOP_AGAIN if row.state == "stopping" else _START_AGAIN)
        if not due:
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda row: self._errand(row, guard), due))

    def _errand(self, row: Parking, guard: contextlib.AbstractContextManager[Any]) -> None:
        assert self.servers is not None
        try:
            if row.state == "stopping":
                self._stop(row, self.servers, guard)
            elif row.state == "parked":
                if self._house.budgets.any:
                    self._house.budgets.check(row.user)
                self.servers.start(row.user, row.server, json.loads(row.options or "{}"))
        except HubRefuses as error:
            log.error("session %s: %s Has the hub been told to let the service stop servers?", row.session, error)
            if row.state == "stopping":
                with guard:
                    self._over(row, "failed", error.message)
        except GPUSpawnerError as error:
            log.info("session %s: %s", row.session, error.message)

    def _stop(self, row: Parking, servers: Servers, guard: contextlib.AbstractContextManager[Any]) -> None:
        if row.options is None:
            share = GPUShare.parse(row.share)
            asked = {**servers.options(row.user, row.server), "share": share.amount, "wait": True}
            asked.pop("profile", None)
            with guard:
                self.rows.change(row, options=json.dumps(asked))
        live = self._house.store.live(row.user, row.server)
        if live is not None and live.id == row.session:
            servers.stop(row.user, row.server)

    # -- what people are told --------------------------------------------------------------------------

    def notices(self, session: str) -> list[Notice]:
        """What the user of a session should know."""
        row = self.rows.get(session)
        if row is None or row.state == "parked":
            return []
        since, due = row.noticed_ms / 1000, row.due_ms / 1000
        if row.state == "noticed":
            message = (
                f"{reason_for(row)} Save your work: what is in memory is being saved too. If that succeeds your server "
                f"is stopped, keeps its place in the queue, and is started again by itself{_when(row)}."
            )
            return [Notice("parking", message, since, due)]
        message = f"Saved ({row.said}). Your server is stopped, keeps its place in the queue, and comes back by itself."
        return [Notice("parking", message, since)]


def sentence(text: str | None) -> str:
    """Somebody's words with one full stop at their end."""
    return f"{(text or '').strip().rstrip('.')}."


def reason_for(row: Parking) -> str:
    """Why a session is parked, in a sentence."""
    if row.wanted_by == ADMIN:
        return f"{row.asked_by} parks this session: {sentence(row.why)}"
    return "Your budget is used up." if row.wanted_by == BUDGET else "More urgent work needs this share."


def _when(row: Parking) -> str:
    where = " on another card" if row.card is not None else ""
    return where if row.back_ms is None else f"{where}, not before {_clock(row.back_ms)}"


def _clock(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%H:%M UTC")
