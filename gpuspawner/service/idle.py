"""Sessions that nobody uses: noticed, warned, shrunk to an eighth, and at last named to the culler.

Two things say that a session is used: its Jupyter server (a kernel or a terminal that is busy, somebody who runs or
saves something, see `gpuspawner_lab.activity`), and the driver (work on its cards, memory taken or given back).
What is not known counts as use: culling never kills work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gpuspawner.errors import GPUSpawnerError
from gpuspawner.fleet.base import Notice
from gpuspawner.idle import IdleTimes
from gpuspawner.share import FRACTIONS, GPUShare

log = logging.getLogger(__name__)

SMALLEST = GPUShare(FRACTIONS[0])
#: A server of which nothing was heard for so many of its reports may be doing anything.
_REPORTS_MISSED = 4


@dataclass
class _Use:
    """What is known of a session's use, in seconds of the watch's clock."""

    last: float
    server_said: float | None = None
    hub_said: float | None = None
    tried_to_shrink: bool = False
    shrunk_from: str | None = None
    shrunk_at: float = 0.0


class IdleWatch:
    """How long each session has been idle, and what follows from it.

    `busy` is asked at each look: for each session whether the driver shows work of it since the last look, None
    where it cannot say. `shrink` (session, share, reason) is called once in an idle time, `give_back` (session, share)
    once a session that was made smaller is used again. Thread-safe. A restart begins all times anew, and forgets what
    is to be given back.
    """

    def __init__(
        self,
        times: IdleTimes,
        busy: Callable[[], Mapping[str, bool | None]],
        shrink: Callable[[str, GPUShare, str], None],
        clock: Callable[[], float] = time.monotonic,
        give_back: Callable[[str, GPUShare], None] = lambda _session, _share: None,
    ) -> None:
        self._give_back = give_back
        self.times = times
        self._busy = busy
        self._shrink = shrink
        self._clock = clock
        self._lock = threading.Lock()
        self._uses: dict[str, _Use] = {}
        self._next_look = 0.0
        shortest = min((time for time in (times.warn, times.shrink, times.cull) if time), default=60.0)
        self._interval = min(5.0, shortest / 8)

    def report(self, session: str, idle_seconds: float, *, by_server: bool) -> float | None:
        """What the session's own server, or else the hub, says; how long it has been idle by all that is known.

        The hub takes an open tab for activity, so it is believed only about servers that say nothing themselves.
        None: not known, or not watched.
        """
        now = self._clock()
        with self._lock:
            use = self._uses.get(session)
            if use is None:
                return None
            if by_server or not self._fresh(use.server_said, now):
                use.last = max(use.last, now - idle_seconds)
            if by_server:
                use.server_said = now
            else:
                use.hub_said = now
            return now - use.last

    def _fresh(self, said: float | None, now: float) -> bool:
        return said is not None and now - said <= _REPORTS_MISSED * self.times.check

    def idle_seconds(self, session: str) -> float | None:
        """Seconds since the session was last used; None where it is not watched."""
        with self._lock:
            use = self._uses.get(session)
            return None if use is None else max(0.0, self._clock() - use.last)

    def due(self, session: str) -> bool:
        """Whether the session has been idle for so long that it may be culled."""
        idle = self.idle_seconds(session)
        return self.times.cull is not None and idle is not None and idle >= self.times.cull

    def reason(self, session: str, reason: str) -> str:
        """Why a session ends, with how long it was idle if it was due."""
        idle = self.idle_seconds(session)
        return f"{reason}, idle for {words(idle)}" if idle is not None and self.due(session) else reason

    def look(self, running: Mapping[str, GPUShare]) -> None:
        """Take notice of what `running` sessions (by id, with their shares) do, and shrink who has been idle."""
        now = self._clock()
        if not self.times.on or now < self._next_look:
            return
        self._next_look = now + self._interval
        busy = self._busy()
        with self._lock:
            for session in self._uses.keys() - running.keys():
                del self._uses[session]
            for session in running:
                use = self._uses.setdefault(session, _Use(now))
                known = self._fresh(use.server_said, now) or self._fresh(use.hub_said, now)
                if not known or busy.get(session) is not False:
                    use.last = now
                if now - use.last < (self.times.warn or 0):
                    use.tried_to_shrink = False
        if self.times.shrink is not None:
            self._give_back_to_used(running)
            self._shrink_idle(running, self.times.shrink, now)

    def chose(self, session: str) -> None:
        """A session's user has chosen its share: nothing is to be given back."""
        with self._lock:
            if (use := self._uses.get(session)) is not None:
                use.shrunk_from = None

    def _give_back_to_used(self, running: Mapping[str, GPUShare]) -> None:
        for session, share in running.items():
            with self._lock:
                use = self._uses[session]
                before = use.shrunk_from
                if before is None or use.last <= use.shrunk_at:
                    continue
                use.shrunk_from = None
            if share == SMALLEST:
                self._give_back(session, GPUShare.parse(before))

    def _shrink_idle(self, running: Mapping[str, GPUShare], after: float, now: float) -> None:
        for session, share in running.items():
            with self._lock:
                use = self._uses[session]
                if (
                    share.cards > 1
                    or share.eighths <= SMALLEST.eighths
                    or use.tried_to_shrink
                    or now - use.last < after
                ):
                    continue
                use.tried_to_shrink = True
            try:
                self._shrink(session, SMALLEST, f"idle for {words(now - use.last)}, from {share.amount}")
            except GPUSpawnerError as error:  # its memory is in use, say: the share stays as it is
                log.info("idle session %s keeps its share: %s", session, error)
            else:
                use.shrunk_from, use.shrunk_at = share.amount, now

    def notices(self, session: str, share: GPUShare) -> Collection[Notice]:
        """What the session's user should be told of."""
        now = self._clock()
        with self._lock:
            use = self._uses.get(session)
            if use is None or self.times.warn is None:
                return []
            idle = now - use.last
            shrunk_from = use.shrunk_from if share == SMALLEST else None
            tried = use.tried_to_shrink
        found = []
        since = time.time() - idle
        if shrunk_from is not None:
            message = (
                f"Shrunk from {shrunk_from} to {share.amount} because nothing was done in it. "
                "It grows back once it is used, when there is room."
            )
            found.append(Notice("idle_shrunk", message, since))
        if idle < self.times.warn:
            return found
        if self.times.shrink is not None and _shrinkable(share) and not tried:
            at, what = self.times.shrink, f"its share becomes {SMALLEST.amount} of the card. Kernels go on"
        elif self.times.cull is not None:
            at, what = self.times.cull, "the server is stopped, and what is only in memory is lost"
        else:
            return found
        message = f"Nothing was done in this session for {words(idle)}. If it stays so, {what}. Run a cell to keep it."
        found.append(Notice("idle", message, since, since + at))
        return found


def _shrinkable(share: GPUShare) -> bool:
    return share.cards == 1 and share.eighths > SMALLEST.eighths


def words(seconds: float) -> str:
    """A time for people, rounded down: 5400 -> "1.5 hours", 90 -> "1 minute"."""
    if seconds >= 5400:
        return f"{int(seconds / 360) / 10:g} hours"
    if seconds >= 60:
        minutes = int(seconds // 60)
        return f"{minutes} minute{'s'[: minutes != 1]}"
    return f"{int(seconds)} seconds"
