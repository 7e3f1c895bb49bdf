"""The node agent: applies shares on the machine with the cards, and is the last gate before them.

Whatever the service believes, limits in force on a card never exceed eight eighths. Every change is
persisted before it raises a limit and after it lowers one, so that a crash in between errs on the safe side.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuspawner.card import Card
from gpuspawner.errors import Conflict, GPUSpawnerError, InUse, NotFound, Unavailable
from gpuspawner.node import energy, installation
from gpuspawner.node.accounts import Accounts
from gpuspawner.node.activity import CardActivity
from gpuspawner.node.admission import Admission
from gpuspawner.node.arrivals import Arrivals
from gpuspawner.node.compute import Compute
from gpuspawner.node.contexts import Contexts
from gpuspawner.node.drivers.base import Driver, DriverError
from gpuspawner.node.drivers.machine import of_machine
from gpuspawner.node.gate import Gate, Policy, gib, owner
from gpuspawner.node.hands import Hands
from gpuspawner.node.health import Health
from gpuspawner.node.health_watch import HealthWatch
from gpuspawner.node.in_force import InForce
from gpuspawner.node.limits import launch
from gpuspawner.node.limits.choice import Enforcers
from gpuspawner.node.limits.enforcer import Name, Resize
from gpuspawner.node.offences import Notice
from gpuspawner.node.overuse import Overuse
from gpuspawner.node.presence import LAUNCHED, Presence
from gpuspawner.node.records import Record, Records
from gpuspawner.node.restoring import clear, restore
from gpuspawner.node.sight import Holder, Sight
from gpuspawner.node.starting import Started, Starter, driver_files
from gpuspawner.share import GPUShare, eighths_text

log = logging.getLogger(__name__)

#: A session that never started a process gives its eighths back after this many seconds.
START_TIMEOUT = 300.0


@dataclass(frozen=True)
class Change:
    """Something that the agent saw by itself: a session's processes are gone, its eighths are free again, it is over
    its limit or was acted upon for that."""

    session: str
    what: Literal["launched", "ended", "freed", "excess"]
    reason: str


class Agent:
    """The agent of one machine. Thread-safe; one process at a time may own `state` (a folder)."""

    def __init__(
        self,
        state: Path,
        driver: Driver | None = None,
        *,
        policy: Policy | None = None,
        start_timeout: float = START_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        presence: Presence = LAUNCHED,
        enforcers: Sequence[Name] | None = None,
    ) -> None:
        self._state = state
        self._presence = presence
        self._folder = state / "node"
        self._sessions = self._folder / "sessions"
        self._sessions.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._owner = installation.own(self._folder / "lock")
        self._driver = driver or of_machine()
        self._health = HealthWatch(self._driver)
        self._start_timeout = start_timeout
        self._clock = clock
        self._lock = threading.RLock()
        self._records = Records(self._folder / "agent.sqlite")
        # Since when a session without a process is waited for, by `clock`: the time of day can be set.
        self._waiting: dict[str, float] = {}
        self._ending: set[str] = set()
        self._own_uids = os.geteuid() == 0 and launch.probe() == "guarded"
        self._cards = {card.uuid: card for card in self._driver.cards()}
        self._activity = CardActivity(self._driver)
        self._arrivals = Arrivals(self._driver, self._cards, clock)
        files = driver_files(self._driver, self.cards())
        name = installation.short_name(state)
        self._enforcers = Enforcers(
            self.cards(), self._driver, self._sessions, name, guarded=self._guards_sessions(), names=enforcers
        )
        self._admission = Admission(self._cards, self._records, self._health, self._enforcers)
        self._contexts = Contexts(self._records, files)
        policy = policy or Policy()
        self._overuse = Overuse(policy, is_judged=self._shares_time, clock=clock)
        self._compute = Compute(
            self._driver, self._records, self._lock, self._folder_of, self._overuse.seen, presence=presence
        )
        self._in_force = InForce(
            self._cards,
            self._enforcers,
            self._contexts.bytes,
            folder_of=self._folder_of,
            frozen=lambda session: self._gate.frozen(session),
            part_of=self._compute.part_of,
        )
        accounts = Accounts(self._records.database, state / "users", own_uids=self._own_uids)
        self._starter = Starter(state, accounts, self._driver, files, self._enforcers, self._in_force, self._folder_of)
        self._sight = Sight(self._driver, self._folder_of, presence)
        self._gate = Gate(
            self._sight,
            self._records,
            self._lock,
            policy,
            folder_of=self._folder_of,
            allowed=self._in_force.allowed,
            context_bytes=lambda card: self._contexts.bytes.get(card, 0),
            freeze=lambda record: self._in_force.apply(record, record.eighths),
            clock=clock,
            presence=presence,
        )
        #: For who keeps another order of steps than this agent does by itself.
        self.hands = Hands(
            self._lock,
            self._cards,
            self._records,
            self._admission,
            self._enforcers,
            self._in_force,
            self._compute,
            self._sight,
            self._gate,
            presence,
            self._folder_of,
        )
        with self._lock:
            restore(self._sessions, self._records, self._in_force, presence)
            self._compute.settle(self._cards)
            clear(self._sessions, self._records, self._enforcers, self._cards, presence)

    def close(self) -> None:
        """Let another process own the state folder."""
        self._compute.close()
        with self._lock:
            for record in self._records.all():
                if record.state == "held" and not self.alive(record.session):
                    with contextlib.suppress(GPUSpawnerError):
                        self._enforcers.release(record.session, record.cards)
            self._records.close()
            self._enforcers.close()
            os.close(self._owner)

    @property
    def grade(self) -> launch.Grade:
        """How strongly this machine can hold a session to its share."""
        return launch.probe()

    def _welcome(self, card: Card) -> None:
        """A card is there that was lost or absent before: what is on record for it is in force again from now on."""
        try:
            self._enforcers.add(card)
        except GPUSpawnerError as error:
            log.warning("card %s is not served: %s", card.uuid, error)
            return
        self._contexts.measure([card.uuid])
        with self._lock:
            self._cards[card.uuid] = card
            for record in self._records.on(card.uuid):
                self._in_force.apply(record, record.eighths if record.state == "live" else 0, insist=False)
            self._compute.settle([card.uuid])
        log.info("card %s is there now", card.uuid)

    def _guards_sessions(self) -> bool:
        """Whether sessions get namespaces, and none is run by root."""
        return launch.probe() == "guarded" and (self._own_uids or os.geteuid() != 0)

    def grade_of(self, uuid: str) -> launch.Grade:
        """How strongly sessions on a card are held to their shares."""
        return "kernel" if self._enforcers.is_kernel(uuid) else launch.probe()

    def resize_of(self, uuid: str) -> Resize:
        """What a change of the share means for a session that runs on a card."""
        return self._enforcers.of(uuid).resize

    def _shares_time(self, uuid: str) -> bool:
        """Whether the sessions on a card compute by turns; slices and virtual functions of it do not."""
        return self._enforcers.of(uuid).name not in ("mig", "virtual-function")

    def only_whole(self, uuid: str) -> str | None:
        """Why a card is given out whole and in no fraction, in one sentence; None where it is shared."""
        return self._enforcers.of(uuid).only_whole

    def fits(self, uuid: str) -> dict[int, int] | None:
        """How many sessions of each fraction could start on a card; None where its free eighths say it all."""
        enforcer = self._enforcers.of(uuid)
        if enforcer.name in ("shim", "driver"):
            return None
        with self._lock:
            taken = [record.eighths for record in self._records.all() if uuid in record.cards]
            return dict(enforcer.fits(taken))

    def cards(self) -> list[Card]:
        """The cards of this machine, by index."""
        return sorted(self._cards.values(), key=lambda card: card.index)

    def free(self, without: str | None = None) -> dict[str, int]:
        """Eighths free on each card, by uuid, as if session `without` had none."""
        with self._lock:
            return self._admission.free(without)

    def health(self, uuid: str) -> Health:
        """How a card is, read at most a moment ago."""
        self._health.look([uuid])
        return self._health.of(uuid)

    def health_since(self, uuid: str) -> tuple[Health, float]:
        """How a card was when it was last read, and since when, in seconds since the epoch."""
        return self._health.of(uuid), self._health.since(uuid)

    def folder_of(self, session: str) -> Path:
        """The node's own folder for a session."""
        return self._folder_of(session)

    def visible(self, session: str) -> list[str]:
        """The uuids by which a live session's programs find its cards. Raises NotFound."""
        with self._lock:
            return self._in_force.visible(self._live(session))

    def records(self) -> list[Record]:
        """What is in force, live and held."""
        with self._lock:
            return self._records.all()

    def record(self, session: str) -> Record | None:
        """What one session has in force, live or held."""
        return self._records.get(session)

    def start(self, session: str, user: str, cards: tuple[str, ...], eighths: int, *, burst: bool = False) -> Started:
        """Put `eighths` of each card in force for a new session, and say how to start its first process.
        No cards and 0 eighths: a session that sees no card. `burst`: it may compute with what others leave idle.

        Raises NoRoom, NotFound (card), Conflict (a session of that name).
        """
        with self._lock:
            if self._records.get(session) is not None:
                raise Conflict(f"There is a session {session} already.")
            self._admission.check_health(cards)
            self._admission.check_room(session, cards, eighths)
            record = Record(session, user, cards, eighths, "live", False, time.time(), burst=burst)
            self._records.put(record)
            try:
                self._in_force.apply(record, eighths)
                self._compute.settle(cards)
                return self._starter.start(record)
            except Exception:
                self._undo_start(record)
                raise

    def _undo_start(self, record: Record) -> None:
        """Nothing is left of a start that failed; what cannot be given back now is, at a later look."""
        try:
            self._enforcers.release(record.session, record.cards)
        except GPUSpawnerError:
            self._records.change(record.session, state="held")
            return
        self._records.remove(record.session)
        self._compute.settle(record.cards)
        shutil.rmtree(self._folder_of(record.session), ignore_errors=True)

    def launch_of(self, session: str) -> Started:
        """How to start the first process of a session that has a share. Raises NotFound when it has none any more."""
        with self._lock:
            return self._starter.start(self._live(session))

    def resize(self, session: str, eighths: int, *, forced: bool = False) -> None:
        """Change what a live session has of its card, in the running processes.

        Raises NoRoom for a grow that the card cannot hold, InUse for a shrink below what the driver shows in
        use, Conflict for sessions with several cards; nothing is changed then. A `forced` shrink is done in any case:
        what is used is excused from then on as it falls, and nothing new is allocated until the limit is kept.
        """
        with self._lock:
            record = self._live(session)
            if len(record.cards) != 1:
                raise Conflict("A session with several cards holds them whole; it cannot be resized while it runs.")
            if eighths == record.eighths:
                return
            self._admission.check_live_resize(record.cards[0])
            if eighths > record.eighths:
                self._admission.check_health(record.cards)
                self._admission.check_room(session, record.cards, eighths)
                self._records.change(session, eighths=eighths)
                try:
                    self._in_force.apply(record, eighths)
                except Exception:
                    self._records.change(session, eighths=record.eighths)
                    self._in_force.apply(record, record.eighths, insist=False)
                    raise
            else:
                self._shrink(record, eighths, forced)
            self._compute.settle(record.cards)

    def set_burst(self, session: str, burst: bool) -> None:
        """Let a live session compute with what others leave idle, or no longer. Raises NotFound."""
        with self._lock:
            record = self._live(session)
            if burst != record.burst:
                self._in_force.apply(self._records.change(session, burst=burst), record.eighths)
                self._compute.settle(record.cards)

    def end(self, session: str, reason: str) -> bool:
        """End a session: no memory from now on, its processes ended. True when its eighths are free again,
        False while the driver still shows memory of it (then `watch` reports them freed)."""
        with self._lock:
            record = self._records.get(session)
            if record is None:
                return True
            if record.state == "live":
                log.info("session %s ends: %s", session, reason)
                self._in_force.apply(record, 0)
                self._sight.used(record)
                try:
                    self._records.change(session, state="held", pids=self._sight.remembered(session))
                except Exception:
                    self._in_force.apply(record, record.eighths)  # it goes on, and may be ended later
                    raise
                self._sight.forget(session)
                self._compute.settle(record.cards)
            self._ending.add(session)
        try:
            self._presence.end(self._folder_of(session), timeout=10.0)
        finally:
            self._ending.discard(session)
        return self._free_if_gone(session)

    def alive(self, session: str) -> bool:
        """Whether any process of the session is left."""
        return self._presence.alive(self._folder_of(session))

    def used_bytes(self, session: str) -> int | None:
        """Card memory that the driver shows for the session's processes; None when it cannot say."""
        with self._lock:
            record = self._records.get(session)
        return None if record is None else self._sight.used(record)

    def energy_mj(self) -> dict[str, int]:
        """What the cards' energy counters show, in millijoules; without the cards that tell nothing."""
        return energy.read(self._driver, self._cards)

    def readings(self) -> dict[str, energy.Now]:
        """What the driver shows of each card now."""
        return energy.now(self._driver, self._cards)

    def notices(self, session: str) -> list[Notice]:
        """What the session's user should know now."""
        record = self._records.get(session)
        failed = [uuid for uuid in record.cards if not self._health.of(uuid).usable] if record else []
        of_cards = [
            Notice(
                "card_failed",
                f"The card under this session is out of service: {self._health.of(uuid).reason} The session keeps its "
                "share. Save your work, stop the server, and start it on another card.",
                self._health.since(uuid),
            )
            for uuid in failed
        ]
        return [*of_cards, *self._gate.notices(session), *self._overuse.notices(session)]

    def holders(self) -> list[Holder]:
        """Every process that the driver shows on this machine's cards, those of no session included.

        Raises DriverError where it does not answer for a card.
        """
        found: list[Holder] = []
        records = self.records()
        for uuid in list(self._cards):
            holders = self._sight.holders(uuid, records)
            if holders is None:
                raise DriverError(f"The driver of card {uuid} does not answer.")
            found += holders
        return found

    def busy(self) -> dict[str, bool | None]:
        """Whether the driver shows work of each live session since the last question; None where it cannot say."""
        live = {record.session: record.cards for record in self.records() if record.state == "live"}
        folders = [self._folder_of(session) for session in live]
        return self._activity.look(
            live, lambda pids: {pid: folder.name for pid, folder in self._presence.owners(folders, pids).items()}
        )

    def watch(self) -> list[Change]:
        """One look at all sessions. Ends those whose processes are gone or never came, frees what is free.

        What fails for one session is logged and tried again at the next look; the others are looked at all the same.
        """
        changes: list[Change] = []
        for card in self._arrivals.look():
            self._welcome(card)
        with self._lock:
            self._in_force.settle(self._records.all())
        self._health.look(list(self._cards))
        for record in self.records():
            try:
                changes += self._look_at(record)
            except Exception:
                log.exception("session %s could not be looked at", record.session)
        live = {record.session: owner(record) for record in self.records() if record.state == "live"}
        for verdict in (*self._gate.look(list(self._cards)), *self._overuse.look(live)):
            changes.append(Change(verdict.session, "excess", verdict.reason))
            if verdict.hopeless:
                self.end(verdict.session, verdict.reason)
                changes.append(Change(verdict.session, "ended", verdict.reason))
        return changes

    def _look_at(self, record: Record) -> list[Change]:
        changes: list[Change] = []
        alive = self.alive(record.session)
        if record.state == "live":
            if alive and not record.launched:
                with self._lock:
                    self._records.change(record.session, launched=True)
                changes.append(Change(record.session, "launched", "its first process runs"))
            reason = self._over(record, alive)
            if reason is None:
                return changes
            self.end(record.session, reason)
            changes.append(Change(record.session, "ended", reason))
        elif alive and record.session not in self._ending:
            # whoever was to end it was killed, or could not
            self._presence.end(self._folder_of(record.session), timeout=1.0)
        if self._free_if_gone(record.session):
            changes.append(Change(record.session, "freed", "the driver shows none of its memory left"))
        return changes

    def _over(self, record: Record, alive: bool) -> str | None:
        if alive:
            self._waiting.pop(record.session, None)
            return None
        # A process may come and go between two looks, but not without leaving a trace. Looked at in this order:
        # where there is a trace and then nobody, it is over; it may also just have started.
        if record.launched or (
            self._presence.was_started(self._folder_of(record.session)) and not self.alive(record.session)
        ):
            return "its last process ended"
        if self._clock() - self._waiting.setdefault(record.session, self._clock()) > self._start_timeout:
            return f"no process of it started within {self._start_timeout:.0f} s"
        return None

    def _live(self, session: str) -> Record:
        record = self._records.get(session)
        if record is None or record.state != "live":
            raise NotFound(f"Session {session} has no share on this machine.")
        return record

    def _shrink(self, record: Record, eighths: int, forced: bool) -> None:
        allowed = GPUShare(eighths).memory_bytes(self._cards[record.cards[0]].memory_bytes)
        try:
            self._in_force.apply(record, eighths, insist=not forced)
            used = self._sight.used(record)
            if forced:
                # Not known is as bad as all that it might have used.
                before = self._in_force.allowed(record, record.cards[0])
                self._gate.excuse(record, record.cards[0], before if used is None else min(used, before))
                self._records.change(record.session, eighths=eighths)
                return
            if used is None:
                raise Unavailable("The driver does not say how much memory is in use, so nothing was changed.")
            if used > allowed:
                raise InUse(
                    f"Free {gib(used - allowed)} first: {gib(used)} are in use and "
                    f"{eighths_text(eighths)} of the card allows {allowed / 2**30:.2f} GiB. Nothing was changed.",
                    need_to_free_bytes=used - allowed,
                    used_bytes=used,
                    allowed_bytes=allowed,
                )
            self._records.change(record.session, eighths=eighths)
        except Exception:
            self._in_force.apply(record, record.eighths, insist=False)
            raise

    def _free_if_gone(self, session: str) -> bool:
        record = self._records.get(session)
        if record is None:
            return True
        if record.state == "live" or self.alive(session) or self._sight.used(record) != 0:
            return False
        with self._lock:
            try:
                self._enforcers.release(session, record.cards)
            except GPUSpawnerError as error:
                log.warning("session %s has ended, and what it had cannot be given back yet: %s", session, error)
                return False
            self._records.remove(session)
            self._waiting.pop(session, None)
            shutil.rmtree(self._folder_of(session), ignore_errors=True)
        return True

    def _folder_of(self, session: str) -> Path:
        return self._sessions / session
