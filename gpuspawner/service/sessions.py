"""Decides: starts, resizes and ends sessions over a fleet, and writes down every change."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import threading
import time
from collections import defaultdict

from gpuspawner.errors import Conflict, GPUSpawnerError, NoRoom, NotFound, Unavailable
from gpuspawner.fleet.base import Fleet, FleetChange, Grant, Launch, Notice, PodLaunch
from gpuspawner.fleet.placement import could_ever_start, place
from gpuspawner.idle import IdleTimes
from gpuspawner.service.cordons import CordonBook
from gpuspawner.service.idle import SMALLEST, IdleWatch
from gpuspawner.service.leader import Alone, Leadership
from gpuspawner.service.ledger.keeper import Keeper
from gpuspawner.service.policy.book import Book
from gpuspawner.service.policy.budgets import FRESH, Budgets
from gpuspawner.service.store import LIVE, Store
from gpuspawner.service.tables import SessionRow
from gpuspawner.service.waiting.clerk import Clerk
from gpuspawner.service.waiting.entries import Entry, Wish
from gpuspawner.service.waiting.servers import Servers
from gpuspawner.share import GPUShare, share_error

log = logging.getLogger(__name__)

#: How long a start waits for the leftovers of the same server's previous session to go.
REPLACE_WAIT = 15.0


class SessionService:
    """Sessions of one fleet. Methods block and are thread-safe; changes of one session wait for each other."""

    def __init__(
        self,
        fleet: Fleet,
        store: Store,
        idle_times: IdleTimes | None = None,
        book: Book | None = None,
        leadership: Leadership | None = None,
        servers: Servers | None = None,
    ) -> None:
        self.fleet = fleet
        self.store = store
        self.book = book or Book()
        self.leadership = leadership or Alone()
        store.project_of = self.book.project_of
        self.budgets = Budgets(self.book.source, self.book.directory, store.engine)
        self._next_budgets = 0.0
        self.keeper = Keeper(fleet, store, lambda: self.book.source.current.prices)
        self.idle = IdleWatch(
            idle_times or IdleTimes(),
            fleet.busy,
            self._shrink,
            give_back=lambda session, share: self.queue.give_back(session, share),
        )
        self.cordons = CordonBook(store, fleet)
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        # Who ends a session and why, from the moment it begins until its eighths are free.
        self._ends: dict[str, tuple[str, str]] = {}
        # What the node said of excess and the ledger has not got yet.
        self._unwritten: list[FleetChange] = []
        self._noting = threading.Lock()
        #: Set where the watcher should look at once.
        self.woken = threading.Event()
        self.queue = Clerk(self, self.woken.set, servers)
        if self.leadership.refresh():
            self._reconcile()

    def must_lead(self) -> None:
        """Whether this service decides. Raises Unavailable."""
        if not self.leadership.leads:
            message = "Another service decides here; this one answers questions only. Try again in a moment."
            raise Unavailable(message, code="not_leader")

    def start(
        self,
        user: str,
        server: str,
        share: GPUShare,
        actor: str,
        card: str | None = None,
        *,
        burst: bool = False,
        environment: str | None = None,
        wish: Wish | None = None,
    ) -> tuple[SessionRow, Launch | PodLaunch, bool] | Entry:
        """Start a session for a user's server, on the card of uuid `card` if one is named; the last value says
        whether it is new. Who wishes to wait where there is no room does; then its row in the queue is returned. Raises
        Forbidden where the policy does not give it to the user.

        The same request gives the same session as long as no process of it runs. One whose processes do run
        is unknown to the hub that asks again (it was killed before it could note it), and is ended first.
        """
        self.must_lead()
        # a policy may count the sessions of a user, so these come one after the other
        with self._locks[f"{user}/"], self._locks[f"{user}/{server}"] if server else contextlib.nullcontext():
            if share.cards:
                self.budgets.check(user)
            wish = wish or Wish()
            parked = self.queue.parker.rows.parked(user, server)
            kind = self.book.kind_of(user, wish.kind) if parked is None else parked.kind
            if parked is not None and parked.card is not None:
                card = parked.card
            named = card
            full: NoRoom | None = None
            if not self.book.policy.open:
                others = [row for row in self.store.sessions(user=user, states=LIVE) if row.server != server]
                try:
                    card = self.book.check_start(user, share, environment, self.fleet.cards(), card, len(others))
                except NoRoom as error:
                    full = error
            old = self.store.live(user, server)
            if old is not None:
                same = old.share == share.amount and (share.model is None or share.model == old.model)
                same = same and (card is None or card in json.loads(old.cards))
                if (same or self.queue.is_placed(old.id)) and not self.fleet.alive(old.id):
                    with contextlib.suppress(NotFound):  # it is being ended in this moment
                        if burst != old.burst:
                            old = self.set_burst(old.id, burst)
                        launch = self.fleet.launch(old.id)
                        self.queue.started(old.id)
                        return old, launch, False
                self._end_and_wait(old.id, actor)
            at_once = full is None and not self.queue.anybody and not self.queue.parker.rests(user, server)
            if not share.cards or at_once:
                try:
                    return self._start_now(user, server, share, actor, card, kind, wish, burst=burst)
                except NoRoom:
                    if not wish.wait:
                        raise
            elif full is not None and not wish.wait:
                raise full
            return self._in_turn(user, server, share, kind, wish, named, burst=burst, environment=environment)

    def _start_now(
        self,
        user: str,
        server: str,
        share: GPUShare,
        actor: str,
        card: str | None,
        kind: str,
        wish: Wish,
        *,
        burst: bool,
    ) -> tuple[SessionRow, Launch | PodLaunch, bool]:
        session = f"s-{secrets.token_hex(6)}"
        grant, launch = self.fleet.start(session, user, share, card, burst=burst, server=server)
        try:
            row = self.store.started(grant, user, server, share, actor, kind=kind, asked=wish.asked())
        except Exception:
            self.fleet.end(session, "it could not be written down")
            raise
        self.queue.remember(row, wish)
        return row, launch, True

    def _in_turn(
        self,
        user: str,
        server: str,
        share: GPUShare,
        kind: str,
        wish: Wish,
        card: str | None,
        *,
        burst: bool,
        environment: str | None,
    ) -> tuple[SessionRow, Launch | PodLaunch, bool] | Entry:
        """A start in the order of the queue. Who does not wish to wait has what is free and kept for nobody, or
        raises NoRoom."""
        states = self.fleet.cards()
        if not could_ever_start(share, states, card):
            place(share, states, card)  # says why, and raises
            raise NoRoom("It cannot be started on these cards.", field="share", given=str(share))
        row = self.queue.join(user, server, share, kind, wish, card=card, burst=burst, environment=environment)
        self.queue.decide(joined=True)
        started = self.store.session(row.id)
        if started is not None:
            launch = self.fleet.launch(row.id)
            self.queue.started(row.id)
            return started, launch, True
        if wish.wait:
            return row
        reason = self.queue.outlook.place(row).reason
        self.queue.leave(row.id, reason, gives_up=False)
        raise NoRoom(reason, field="share", given=str(share))

    def change(self, session: str, share: GPUShare | None, burst: bool | None, actor: str) -> SessionRow:
        """Change a running session's share, or its burst, or both or none of them; the session as it is then.
        Raises as `resize` does."""
        self.must_lead()
        if share is None:
            return self.set_burst(session, burst) if burst is not None else self._known(session)
        before = self.fleet.grant(session)
        if burst is not None:
            self.set_burst(session, burst)
        try:
            return self.resize(session, share, actor)
        except Exception:
            if burst is not None and before is not None and before.burst != burst:
                with contextlib.suppress(GPUSpawnerError):  # it has ended
                    self.set_burst(session, before.burst)
            raise

    def resize(self, session: str, share: GPUShare, actor: str, reason: str | None = None) -> SessionRow:
        """Change a running session's share of its card, in its running processes; the session as it is then. `reason`
        is for the ledger. A smaller share is never against the policy.

        Raises NoRoom, InUse, Conflict, NotFound, Forbidden; nothing has changed then.
        """
        with self._locks[session]:
            before = self._live_grant(session)
            if share.cards != 1:
                raise share_error(str(share), allowed="1/8, 1/4, 1/2 or 1 for a session that runs")
            model = before.cards[0].model if before.cards else ""
            if share.model is not None and share.model not in (model, model.partition("-")[0]):
                raise Conflict(f"This session runs on a card of model {model}, which cannot change.")
            if not before.eighths_per_card:
                raise Conflict("This session was started without a card. Start the server anew to choose one.")
            if len(before.cards) > 1:
                raise Conflict("A session with several cards holds them whole; it cannot be resized while it runs.")
            if share.eighths > before.eighths_per_card:
                self._check_growth(session, share, before)
            self.fleet.resize(session, share.eighths)
            try:
                row = self.store.resized(session, share, actor, reason)
            except Exception:
                with contextlib.suppress(GPUSpawnerError):  # else the next look writes down what is in force
                    self.fleet.resize(session, before.eighths_per_card)
                raise
            row = _still_there(row)
        if actor != "queue":
            self.queue.chose(session, share)
        if actor not in ("queue", "node"):
            self.idle.chose(session)
        return row

    def _check_growth(self, session: str, share: GPUShare, before: Grant) -> None:
        self.cordons.check_growth(before)
        if self.budgets.any:
            self.budgets.check(self._known(session).user)
        if not self.book.policy.open:
            states = self.fleet.cards([card.uuid for card in before.cards])
            self.book.check_growth(self._known(session).user, GPUShare(share.eighths), states)

    def set_burst(self, session: str, burst: bool) -> SessionRow:
        """Let a running session compute with what others leave idle, or no longer; the session as it is then. Raises
        NotFound, Conflict."""
        with self._locks[session]:
            before = self._live_grant(session)
            if burst and not before.eighths_per_card:
                raise Conflict("This session was started without a card, so there is nothing for it to compute with.")
            self.fleet.set_burst(session, burst)
            try:
                row = self.store.set_burst(session, burst)
            except Exception:
                with contextlib.suppress(GPUSpawnerError):
                    self.fleet.set_burst(session, before.burst)
                raise
            return _still_there(row)

    def end(self, session: str, actor: str, reason: str) -> SessionRow:
        """End a session: its processes, its share, its charge. The session as it is then."""
        self.must_lead()
        self._known(session)
        self._ends.setdefault(session, (actor, self.idle.reason(session, reason)))
        freed = self.fleet.end(session, reason)
        if not freed:  # a resize may be in force that is not written down yet
            self._write_what_is_left(self._known(session), self.fleet.grant(session))
        self._ended(session, freed)
        return self._known(session)

    def look(self) -> None:
        """Write down what happened in the fleet by itself, and what could not be written down before."""
        self.book.source.refresh()
        self.cordons.refresh()
        led = self.leadership.leads
        if not self.leadership.refresh():
            return
        if not led:
            self._reconcile()
        self.keeper.look()
        self._hear()
        with self._noting:
            while self._unwritten:
                self.store.noted(self._unwritten[0].session, self._unwritten[0].reason)
                self._unwritten.pop(0)
        self._agree("its share was found to be gone")
        for session, actor, reason in self.cordons.to_end(self.fleet.grants()):
            self.end(session, actor, reason)
        self._look_at_budgets()
        self.queue.look()
        if self.idle.times.on:
            rows = self.store.sessions(states=("running",))
            self.idle.look({row.id: GPUShare.parse(row.share) for row in rows})

    def _look_at_budgets(self) -> None:
        """Shrink to the smallest share what belongs to those whose budget has been used up for too long."""
        if not self.budgets.any or time.monotonic() < self._next_budgets:
            return
        self._next_budgets = time.monotonic() + FRESH
        rows = [row for row in self.store.sessions(states=LIVE) if GPUShare.parse(row.share).cards == 1]
        for user, why in self.budgets.to_shrink(sorted({row.user for row in rows})).items():
            for row in rows:
                if row.user == user and GPUShare.parse(row.share).eighths > SMALLEST.eighths:
                    try:
                        self._shrink(row.id, SMALLEST, why)
                    except GPUSpawnerError as error:  # its memory is in use; the next look tries again
                        log.warning("session %s is not shrunk though %s: %s", row.id, why, error.message)
        if self.queue.parker.on:
            self._park_over_budget()

    def _park_over_budget(self) -> None:
        """Ask to save what belongs to those whose budget has been used up for longer still."""
        rows = [row for row in self.store.sessions(states=("running",)) if GPUShare.parse(row.share).cards]
        late = self.budgets.to_park(sorted({row.user for row in rows}))
        for row in rows:
            if row.user in late:
                self.queue.park_for_budget(row)

    def _hear(self) -> None:
        for change in self.fleet.watch():
            log.info("session %s: %s (%s)", change.session, change.what, change.reason)
            if change.what == "ended":
                self._ends.setdefault(change.session, ("node", self.idle.reason(change.session, change.reason)))
            elif change.what == "excess":
                self._unwritten.append(change)

    def notices(self, row: SessionRow) -> list[Notice]:
        """What the user of a session should know now."""
        if row.state not in LIVE:
            return []
        try:
            of_budgets = self.budgets.notices(row.user)
        except Unavailable:  # the hub does not say who that is
            of_budgets = []
        drained = self.cordons.notices(self.fleet.grant(row.id))
        return [
            *self.fleet.notices(row.id),
            *drained,
            *self.queue.notices(row),
            *self.idle.notices(row.id, GPUShare.parse(row.share)),
            *of_budgets,
        ]

    def _known(self, session: str) -> SessionRow:
        row = self.store.session(session)
        if row is None:
            raise NotFound("There is no such session.")
        return row

    def _live_grant(self, session: str) -> Grant:
        """What is in force says more than the store: what was written last may have failed. Raises NotFound."""
        grant = self.fleet.grant(session)
        if grant is None or grant.ended:
            raise NotFound("This session has ended.")
        return grant

    def _shrink(self, session: str, share: GPUShare, why: str) -> None:
        self.resize(session, share, "node", why)

    def _ended(self, session: str, freed: bool, otherwise: str = "") -> None:
        self.store.ended(session, freed, *self._ends.get(session, ("node", otherwise)))
        if freed:
            self._ends.pop(session, None)
        self.queue.ended(session)

    def _agree(self, reason: str) -> None:
        """Make the store agree with the fleet about every session that the store takes to hold something.

        By what is, not by what was told: a change whose writing failed is written at the next look.
        """
        # Rows before grants: a row is written after its grant, so a row without one has lost it.
        rows = self.store.sessions(states=(*LIVE, "ending"))
        grants = {grant.session: grant for grant in self.fleet.grants()}
        for row in rows:
            grant = grants.get(row.id)
            if (grant is None or (grant.ended and row.state in LIVE)) and row.id not in self._ends:
                self._hear()  # it went after the last question; why was told before it was gone
            if grant is None:
                self._ended(row.id, True, reason)
            elif grant.ended and row.state in LIVE:
                self._write_what_is_left(row, grant)
                self._ended(row.id, False, reason)
            elif row.state == "starting" and self.fleet.alive(row.id):
                self.store.running(row.id)
            if grant is not None and _differs(grant, row):
                self._correct(row.id)

    def _write_what_is_left(self, row: SessionRow, grant: Grant | None, at: int | None = None) -> None:
        """Before the end of a session: of a change that was in force and not written down yet its memory stays."""
        if grant is not None and GPUShare.parse(row.share).cards == 1 and grant.eighths_per_card != _eighths(row):
            self.store.resized(row.id, GPUShare(grant.eighths_per_card), "node", "found in force", at)

    def _correct(self, session: str) -> None:
        with self._locks[session]:
            row, grant = self.store.session(session), self.fleet.grant(session)
            if row is not None and grant is not None and _differs(grant, row):
                self.store.resized(session, GPUShare(grant.eighths_per_card), "node", "found in force")

    def _end_and_wait(self, session: str, actor: str) -> None:
        self.end(session, actor, "replaced by a new start of the same server")
        deadline = time.monotonic() + REPLACE_WAIT
        while self.fleet.grant(session) is not None:
            self.look()
            if time.monotonic() > deadline:
                raise Conflict("The last session of this server is still ending. Try again in a moment.")
            time.sleep(0.05)

    def _reconcile(self) -> None:
        """After a restart: the fleet knows what is in force, the store why. Make them agree.

        What ended while the service was away is charged until it last looked. What the store has never heard of is
        taken over where the fleet says whose it is: another service has started it, or the records were lost. Else
        nobody asked for it.
        """
        self.keeper.recall()
        grants = self.fleet.grants()
        there = {grant.session: grant for grant in grants}
        # all of the lost ones before what is dated now: times in the ledger never go back
        for row in self.store.sessions(states=LIVE):
            grant = there.get(row.id)
            if grant is None or grant.ended:
                self._write_what_is_left(row, grant, self.keeper.seen)
                self.store.ended(row.id, False, "node", "ended while the service was away", self.keeper.seen)
        self.keeper.look()  # other cards and prices, since when they hold; then what is on them now
        for grant in grants:
            known = self.store.session(grant.session)
            if grant.ended or (known is not None and known.state in LIVE):
                continue
            if known is None and grant.owner is not None:
                user, server, share = grant.owner
                self.store.started(grant, user, server, share, "node", "found running")
            else:
                self.fleet.end(grant.session, "nobody asked for it")
        self._agree("ended while the service was away")
        self.queue.recall()


def _still_there(row: SessionRow | None) -> SessionRow:
    if row is None:
        raise NotFound("This session has ended.")
    return row


def _eighths(row: SessionRow) -> int:
    return GPUShare.parse(row.share).eighths


def _differs(grant: Grant, row: SessionRow) -> bool:
    one = GPUShare.parse(row.share).cards == 1
    return row.state in LIVE and not grant.ended and one and grant.eighths_per_card != _eighths(row)
