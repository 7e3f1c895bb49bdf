"""The service's own threads: one looks at the fleet, one does the queue's errands at the hub."""

from __future__ import annotations

import logging
import threading

from gpuspawner.service.sessions import SessionService

log = logging.getLogger(__name__)


class Courier(threading.Thread):
    """Does the queue's errands at the hub every `interval` seconds until it is told to stop."""

    def __init__(self, sessions: SessionService, interval: float = 0.5) -> None:
        super().__init__(name="courier", daemon=True)
        self._sessions = sessions
        self._interval = interval
        self._over = threading.Event()

    def run(self) -> None:
        """Go until stopped. What fails is logged, and tried again."""
        while not self._over.wait(self._interval):
            if not self._sessions.leadership.leads:
                continue
            try:
                self._sessions.queue.errands()
            except Exception:
                log.exception("an errand at the hub failed")

    def stop(self) -> None:
        """Stop; an errand under way is not waited for."""
        self._over.set()


class Watcher(threading.Thread):
    """Looks at the fleet every `interval` seconds until it is told to stop."""

    def __init__(self, sessions: SessionService, interval: float = 0.5) -> None:
        super().__init__(name="watcher", daemon=True)
        self._sessions = sessions
        self._interval = interval
        self._over = threading.Event()

    def run(self) -> None:
        """Look until stopped. A look that fails is logged, and the next one tries again."""
        while not self._over.is_set():
            self._sessions.woken.wait(self._interval)
            self._sessions.woken.clear()
            if self._over.is_set():
                break
            try:
                self._sessions.look()
            except Exception:
                log.exception("a look at the fleet failed")

    def stop(self) -> None:
        """Stop, and wait for the look under way."""
        self._over.set()
        self._sessions.woken.set()
        self.join()
