"""Decides: starts, resizes and ends sessions over a fleet, and writes down every change."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import defaultdict

from gpuspawner.errors import Conflict, NotFound
from gpuspawner.fleet.base import Fleet, Grant, Launch
from gpuspawner.service.store import LIVE, Store
from gpuspawner.service.tables import SessionRow
from gpuspawner.share import GPUShare, share_error

log = logging.getLogger(__name__)

#: How long a start waits for the leftovers of the same server's previous session to go.
REPLACE_WAIT = 15.0


class SessionService:
    """Sessions of one fleet. Methods block and are thread-safe; changes of one session wait for each other."""

    def __init__(self, fleet: Fleet, store: Store) -> None:
        self.fleet = fleet
        self.store = store
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._reconcile()

    def start(self, user: str, server: str, share: GPUShare, actor: str) -> tuple[SessionRow, Launch, bool]:
        """Start a session for a user's server; the last value says whether it is new.

        The same request gives the same session as long as no process of it runs. One whose processes do run
        is unknown to the hub that asks again (it was killed before it could note it), and is ended first.
        """
        with self._locks[f"{user}/{server}"]:
            old = self.store.live(user, server)
            if old is not None:
                same = old.share == share.amount and (share.model is None or share.model == old.model)
                if same and not self.fleet.alive(old.id):
                    _, launch = self.fleet.start(old.id, user, share)
                    return old, launch, False
                self._end_and_wait(old.id, actor)
            session = f"s-{secrets.token_hex(6)}"
            grant, launch = self.fleet.start(session, user, share)
            try:
                row = self.store.started(grant, user, server, share, actor)
            except Exception:
                self.fleet.end(session, "it could not be written down")
                raise
            return row, launch, True

    def resize(self, session: str, share: GPUShare, actor: str) -> None:
        """Change a running session's share of its card, in its running processes.

        Raises NoRoom, InUse, Conflict, NotFound; nothing has changed then.
        """
        with self._locks[session]:
            row = self.store.session(session)
            if row is None or row.state not in LIVE:
                raise NotFound("This session has ended.")
            if share.cards > 1:
                raise share_error(str(share), allowed="1/8, 1/4, 1/2 or 1 for a session that runs")
            if share.model is not None and share.model not in (row.model, row.model.partition("-")[0]):
                raise Conflict(f"This session runs on a card of model {row.model}, which cannot change.")
            before = GPUShare.parse(row.share)
            if before.cards > 1:
                raise Conflict("A session with several cards holds them whole; it cannot be resized while it runs.")
            self.fleet.resize(session, share.eighths)
            if share.eighths != before.eighths:
                self.store.resized(session, share, actor, f"from {before.amount} to {share.amount}")

    def end(self, session: str, actor: str, reason: str) -> None:
        """End a session: its processes, its share, its charge."""
        if self.store.session(session) is None:
            raise NotFound("There is no such session.")
        freed = self.fleet.end(session, reason)
        self.store.ended(session, freed, actor, reason)

    def look(self) -> None:
        """Write down what happened in the fleet by itself."""
        for change in self.fleet.watch():
            log.info("session %s: %s (%s)", change.session, change.what, change.reason)
            if change.what == "launched":
                self.store.running(change.session)
            else:
                self.store.ended(change.session, change.what == "freed", "node", change.reason)

    def grant(self, session: str) -> Grant | None:
        """The share in force of a session."""
        return next((grant for grant in self.fleet.grants() if grant.session == session), None)

    def _end_and_wait(self, session: str, actor: str) -> None:
        self.end(session, actor, "replaced by a new start of the same server")
        deadline = time.monotonic() + REPLACE_WAIT
        while self.grant(session) is not None:
            self.look()
            if time.monotonic() > deadline:
                raise Conflict("The last session of this server is still ending. Try again in a moment.")
            time.sleep(0.05)

    def _reconcile(self) -> None:
        """After a restart: the fleet knows what is in force, the store why. Make them agree."""
        grants = {grant.session: grant for grant in self.fleet.grants()}
        for session, grant in grants.items():
            row = self.store.session(session)
            if row is None or row.state not in LIVE:
                if not grant.ended:
                    self.fleet.end(session, "nobody asked for it")
                continue
            if grant.ended:
                self.store.ended(session, False, "node", "ended while the service was away")
            elif len(grant.cards) == 1 and grant.eighths_per_card != GPUShare.parse(row.share).eighths:
                self.store.resized(session, GPUShare(grant.eighths_per_card), "node", "found in force after a restart")
        for row in self.store.sessions(states=(*LIVE, "ending")):
            if row.id not in grants:
                self.store.ended(row.id, True, "node", "ended while the service was away")


class Watcher(threading.Thread):
    """Looks at the fleet every `interval` seconds until it is told to stop."""

    def __init__(self, sessions: SessionService, interval: float = 0.5) -> None:
        super().__init__(name="watcher", daemon=True)
        self._sessions = sessions
        self._interval = interval
        self._over = threading.Event()

    def run(self) -> None:
        """Look until stopped. A look that fails is logged, and the next one tries again."""
        while not self._over.wait(self._interval):
            try:
                self._sessions.look()
            except Exception:
                log.exception("a look at the fleet failed")

    def stop(self) -> None:
        """Stop, and wait for the look under way."""
        self._over.set()
        self.join()
