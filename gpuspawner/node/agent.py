"""The node agent: applies shares on the machine with the cards, and is the last gate before them.

Whatever the service believes, limits in force on a card never exceed eight eighths. Every change is
persisted before it raises a limit and after it lowers one, so that a crash in between errs on the safe side.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gpuspawner
from gpuspawner.card import Card
from gpuspawner.errors import Conflict, GPUSpawnerError, InUse, NoRoom, NotFound, Unavailable
from gpuspawner.node.accounts import Accounts
from gpuspawner.node.activity import CardActivity
from gpuspawner.node.compute import WHOLE, Compute
from gpuspawner.node.drivers.nvml import DriverError, NVMLDriver
from gpuspawner.node.gate import Gate, Notice, Policy, gib
from gpuspawner.node.health import Health
from gpuspawner.node.health_watch import HealthWatch
from gpuspawner.node.limits import abi, launch, measure
from gpuspawner.node.limits.choice import Enforcers
from gpuspawner.node.limits.enforcer import Resize
from gpuspawner.node.records import Record, Records
from gpuspawner.node.sight import Holder, Sight
from gpuspawner.share import EIGHTHS_PER_CARD, GPUShare, eighths_text

log = logging.getLogger(__name__)

#: A session that never started a process gives its eighths back after this many seconds.
START_TIMEOUT = 300.0


@dataclass(frozen=True)
class Started:
    """How to start a session's first process: `argv_prefix` goes before its command. `record`: what is in force."""

    record: Record
    argv_prefix: list[str]
    env: dict[str, str]
    grade: launch.Grade
    home: Path
    uid: int | None


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
        driver: NVMLDriver | None = None,
        *,
        policy: Policy | None = None,
        start_timeout: float = START_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._folder = state / "node"
        self._sessions = self._folder / "sessions"
        self._sessions.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._owner = _own(self._folder / "lock")
        self._driver = driver or NVMLDriver()
        self._health = HealthWatch(self._driver)
        self._start_timeout = start_timeout
        self._clock = clock
        self._lock = threading.RLock()
        self._records = Records(self._folder / "agent.sqlite")
        # Since when a session without a process is waited for, by `clock`: the time of day can be set.
        self._waiting: dict[str, float] = {}
        self._ending: set[str] = set()
        self._own_uids = os.geteuid() == 0 and launch.probe() == "guarded"
        self._accounts = Accounts(self._records.database, state / "users", own_uids=self._own_uids)
        self._cards = {card.uuid: card for card in self._driver.cards()}
        self._activity = CardActivity(self._driver)
        self._files = self._driver_files()
        self._enforcers = Enforcers(
            self.cards(), self._driver, self._sessions, _short_name(state), guarded=self._guards_sessions()
        )
        self._context_bytes = self._measure_contexts()
        self._sight = Sight(self._driver, self._folder_of)
        self._gate = Gate(
            self._sight,
            self._records,
            self._lock,
            policy or Policy(),
            folder_of=self._folder_of,
            allowed=self._allowed,
            context_bytes=lambda card: self._context_bytes.get(card, 0),
            freeze=lambda record: self._apply(record, record.eighths),
            clock=clock,
        )
        self._compute = Compute(self._driver, self._records, self._lock, self._folder_of)
        self._restore()

    def close(self) -> None:
        """Let another process own the state folder."""
        self._compute.close()
        with self._lock:
            self._records.close()
            self._enforcers.close()
            os.close(self._owner)

    @property
    def grade(self) -> launch.Grade:
        """How strongly this machine can hold a session to its share."""
        return launch.probe()

    def _guards_sessions(self) -> bool:
        """Whether sessions get namespaces, and none is run by root."""
        return launch.probe() == "guarded" and (self._own_uids or os.geteuid() != 0)

    def grade_of(self, uuid: str) -> launch.Grade:
        """How strongly sessions on a card are held to their shares."""
        return "kernel" if self._enforcers.is_kernel(uuid) else launch.probe()

    def resize_of(self, uuid: str) -> Resize:
        """What a change of the share means for a session that runs on a card."""
        return self._enforcers.of(uuid).resize

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
            taken = self._records.in_force(without)
        return {uuid: EIGHTHS_PER_CARD - taken[uuid] for uuid in self._cards}

    def health(self, uuid: str) -> Health:
        """How a card is, read at most a moment ago."""
        self._health.look([uuid])
        return self._health.of(uuid)

    def records(self) -> list[Record]:
        """What is in force, live and held."""
        with self._lock:
            return self._records.all()

    def start(self, session: str, user: str, cards: tuple[str, ...], eighths: int, *, burst: bool = False) -> Started:
        """Put `eighths` of each card in force for a new session, and say how to start its first process.
        No cards and 0 eighths: a session that sees no card. `burst`: it may compute with what others leave idle.

        Raises NoRoom, NotFound (card), Conflict (a session of that name).
        """
        with self._lock:
            if self._records.get(session) is not None:
                raise Conflict(f"There is a session {session} already.")
            self._check_health(cards)
            self._check_room(session, cards, eighths)
            record = Record(session, user, cards, eighths, "live", False, time.time(), burst=burst)
            self._records.put(record)
            try:
                self._apply(record, eighths)
                self._compute.settle(cards)
                return self._launch(record)
            except Exception:
                with contextlib.suppress(GPUSpawnerError):
                    self._enforcers.release(session, cards)
                self._records.remove(session)
                self._compute.settle(cards)
                shutil.rmtree(self._folder_of(session), ignore_errors=True)
                raise

    def launch_of(self, session: str) -> Started:
        """How to start the first process of a session that has a share. Raises NotFound when it has none any more."""
        with self._lock:
            return self._launch(self._live(session))

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
            self._check_live_resize(record.cards[0])
            if eighths > record.eighths:
                self._check_health(record.cards)
                self._check_room(session, record.cards, eighths)
                self._records.change(session, eighths=eighths)
                try:
                    self._apply(record, eighths)
                except Exception:
                    self._records.change(session, eighths=record.eighths)
                    raise
            else:
                self._shrink(record, eighths, forced)
            self._compute.settle(record.cards)

    def set_burst(self, session: str, burst: bool) -> None:
        """Let a live session compute with what others leave idle, or no longer. Raises NotFound."""
        with self._lock:
            record = self._live(session)
            if burst != record.burst:
                self._apply(self._records.change(session, burst=burst), record.eighths)
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
                self._apply(record, 0)
                self._sight.used(record)
                try:
                    self._records.change(session, state="held", pids=self._sight.remembered(session))
                except Exception:
                    self._apply(record, record.eighths)  # it goes on, and may be ended when that can be written
                    raise
                self._sight.forget(session)
                self._compute.settle(record.cards)
            self._ending.add(session)
        try:
            launch.end_session(self._folder_of(session), timeout=10.0)
        finally:
            self._ending.discard(session)
        return self._free_if_gone(session)

    def alive(self, session: str) -> bool:
        """Whether any process of the session is left."""
        return launch.session_alive(self._folder_of(session))

    def used_bytes(self, session: str) -> int | None:
        """Card memory that the driver shows for the session's processes; None when it cannot say."""
        with self._lock:
            record = self._records.get(session)
        return None if record is None else self._sight.used(record)

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
        return [*of_cards, *self._gate.notices(session)]

    def holders(self) -> list[Holder]:
        """Every process that the driver shows on this machine's cards, those of no session included.

        Raises DriverError where it does not answer for a card.
        """
        found: list[Holder] = []
        records = self.records()
        for uuid in self._cards:
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
            live, lambda pids: {pid: folder.name for pid, folder in launch.owners(folders, pids).items()}
        )

    def watch(self) -> list[Change]:
        """One look at all sessions. Ends those whose processes are gone or never came, frees what is free.

        What fails for one session is logged and tried again at the next look; the others are looked at all the same.
        """
        changes: list[Change] = []
        self._health.look(self._cards)
        for record in self.records():
            try:
                changes += self._look_at(record)
            except Exception:
                log.exception("session %s could not be looked at", record.session)
        for verdict in self._gate.look(self._cards):
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
            launch.end_session(self._folder_of(record.session), timeout=1.0)
        if self._free_if_gone(record.session):
            changes.append(Change(record.session, "freed", "the driver shows none of its memory left"))
        return changes

    def _over(self, record: Record, alive: bool) -> str | None:
        if alive:
            self._waiting.pop(record.session, None)
            return None
        # A process may come and go between two looks, but not without leaving a trace. Looked at in this order:
        # where there is a trace and then nobody, it is over; it may also just have started.
        if record.launched or (launch.was_started(self._folder_of(record.session)) and not self.alive(record.session)):
            return "its last process ended"
        if self._clock() - self._waiting.setdefault(record.session, self._clock()) > self._start_timeout:
            return f"no process of it started within {self._start_timeout:.0f} s"
        return None

    def _live(self, session: str) -> Record:
        record = self._records.get(session)
        if record is None or record.state != "live":
            raise NotFound(f"Session {session} has no share on this machine.")
        return record

    def _check_room(self, session: str, cards: tuple[str, ...], eighths: int) -> None:
        free = self.free(without=session)
        for uuid in cards:
            if uuid not in free:
                raise NotFound(f"There is no card {uuid} on this machine.", field="card", given=uuid)
            enforcer = self._enforcers.of(uuid)
            if not enforcer.allows(eighths):
                raise NoRoom("This card is only given out whole.", field="share", given=eighths_text(eighths))
            if len(cards) > 1 and enforcer.name == "mig":
                raise NoRoom("A card that is cut into slices (MIG) cannot be joined with others.", field="share")
            if eighths > free[uuid]:
                others = "beside this session " if self._records.get(session) else ""
                raise NoRoom(
                    f"Only {eighths_text(free[uuid])} of the card is free {others}now, "
                    f"so {eighths_text(eighths)} does not fit.".replace("Only nothing", "Nothing"),
                    free_eighths=free[uuid],
                )

    def _check_health(self, cards: tuple[str, ...]) -> None:
        """A failed card gives out no eighths any more; those that are held on it stay."""
        known = [uuid for uuid in cards if uuid in self._cards]
        self._health.look(known, fresh=True)
        for uuid in known:
            health = self._health.of(uuid)
            if not health.usable:
                raise Conflict(
                    f"The card is out of service: {health.reason} Choose another one.",
                    code="card_failed",
                    field="card",
                    given=uuid,
                )

    def _check_live_resize(self, uuid: str) -> None:
        resize = self.resize_of(uuid)
        if resize == "restart":
            raise Conflict(
                "This session holds a slice that the card itself was cut into (MIG); a slice cannot change while it is "
                "in use. Save your work, stop the server, and start it with the share that you want.",
                code="resize_needs_restart",
            )
        if resize == "none":
            raise Conflict("This card is given out whole; its sessions cannot be resized.", code="not_resizable")

    def _shrink(self, record: Record, eighths: int, forced: bool) -> None:
        allowed = GPUShare(eighths).memory_bytes(self._cards[record.cards[0]].memory_bytes)
        try:
            self._apply(record, eighths, insist=not forced)
            used = self._sight.used(record)
            if forced:
                # Not known is as bad as all that it might have used.
                before = self._allowed(record, record.cards[0])
                self._gate.excuse(record, record.cards[0], before if used is None else min(used, before))
                self._records.change(record.session, eighths=eighths)
                return
            if used is None:
                raise Unavailable("The driver does not say how much memory is in use, so nothing was changed.")
            if used > allowed:
                raise InUse(
                    f"Free {used - allowed:,} bytes ({gib(used - allowed)}) first: {gib(used)} are in use and "
                    f"{eighths_text(eighths)} of the card allows {allowed / 2**30:.2f} GiB. Nothing was changed.",
                    need_to_free_bytes=used - allowed,
                    used_bytes=used,
                    allowed_bytes=allowed,
                )
            self._records.change(record.session, eighths=eighths)
        except Exception:
            self._apply(record, record.eighths)
            raise

    def _allowed(self, record: Record, uuid: str) -> int:
        """Bytes that a live session may use of a card."""
        return GPUShare(record.eighths).memory_bytes(self._cards[uuid].memory_bytes)

    def _apply(self, record: Record, eighths: int, *, insist: bool = True) -> None:
        """Put a share in force. `insist`: whether a driver that does not take the limit is an error."""
        limits = []
        for uuid in record.cards:
            card = self._cards.get(uuid)
            if card is None:
                continue
            enforcer = self._enforcers.of(uuid)
            place = enforcer.take(record.session, eighths or record.eighths)
            allowed = place.memory_bytes if eighths else 0
            try:
                enforcer.limit(record.session, allowed)
            except GPUSpawnerError as error:
                if eighths and insist:
                    raise
                log.warning("session %s: %s", record.session, error)
            compute, turn = self._compute.part_of(record.session, uuid, eighths)
            if eighths and place.visible_uuid != uuid:  # a slice of the card is its holder's alone
                compute, turn = WHOLE, 0
            limits.append(
                abi.CardLimit(
                    uuid=place.visible_uuid,
                    eighths=eighths,
                    memory_bytes=allowed,
                    context_bytes=self._context_bytes.get(uuid, 0),
                    burst=record.burst,
                    frozen=self._gate.frozen(record.session),
                    compute=compute,
                    compute_from=turn,
                )
            )
        folder = self._folder_of(record.session)
        for part in (folder, folder / "limit"):
            part.mkdir(mode=0o755, exist_ok=True)
        abi.write_limits(folder / "limit" / "limit", limits)

    def _launch(self, record: Record) -> Started:
        account = self._accounts.of(record.user)
        plan = launch.SessionPlan(
            session_dir=self._folder_of(record.session),
            home=account.home,
            uid=account.uid,
            gid=account.uid,
            user_name=account.name,
            driver=self._files,
            expose=_program_folders(),
            hide=[self._state, *self._enforcers.hidden(record.session, record.cards)],
            cgroup=self._enforcers.cgroup(record.session, record.cards),
        )
        try:
            prepared = launch.prepare(plan)
        except launch.LaunchError as error:
            raise Unavailable(f"The session cannot be started on this machine: {error}.", code="launch") from error
        env = {
            **prepared.env,
            "CUDA_VISIBLE_DEVICES": ",".join(self._visible(record)),  # empty hides all, where it has none
            "GPUSPAWNER_SESSION": record.session,
        }
        return Started(record, prepared.argv_prefix, env, prepared.grade, account.home, account.uid)

    def _visible(self, record: Record) -> list[str]:
        """The uuids by which the session's programs find its cards, or its slices of them."""
        known = [uuid for uuid in record.cards if uuid in self._cards]
        return [self._enforcers.of(uuid).take(record.session, record.eighths).visible_uuid for uuid in known]

    def _measure_contexts(self) -> dict[str, int]:
        """What a context takes on each card: measured now, or where that fails (a full card) as it was before."""
        known = self._records.context_bytes()
        try:
            measured = measure.context_bytes(self._files)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("What a context takes could not be measured: %s", error)
            return known
        self._records.keep_context_bytes(measured)
        return known | measured

    def _driver_files(self) -> launch.DriverFiles:
        if self._driver.cuda_library is None or self._driver.nvml_library is None:
            raise DriverError("The card driver's libraries (libcuda.so.1, libnvidia-ml.so.1) were not found.")
        simulated_socket = os.environ.get("GPUSPAWNER_SIM_SOCKET")
        return launch.DriverFiles(
            cuda=self._driver.cuda_library,
            nvml=self._driver.nvml_library,
            extra=[Path(simulated_socket)] if simulated_socket else [],
            env={"GPUSPAWNER_SIM_SOCKET": simulated_socket} if simulated_socket else {},
        )

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

    def _restore(self) -> None:
        """After a restart every limit is written again: what is in force, or nothing for ended sessions."""
        with self._lock:
            for folder in self._sessions.iterdir():
                if self._records.get(folder.name) is None and launch.session_alive(folder):
                    self._adopt(folder)
            for record in self._records.all():
                if self._folder_of(record.session).is_dir():
                    try:
                        self._apply(record, record.eighths if record.state == "live" else 0)
                    except GPUSpawnerError as error:
                        log.warning("the limit of session %s could not be written again: %s", record.session, error)
            self._compute.settle(self._cards)
            known = {record.session for record in self._records.all()}
            for folder in self._sessions.iterdir():
                if folder.name not in known and not launch.session_alive(folder):
                    with contextlib.suppress(GPUSpawnerError):
                        self._enforcers.release(folder.name, self._cards)
                    shutil.rmtree(folder, ignore_errors=True)

    def _adopt(self, folder: Path) -> None:
        """Take a session that runs and of which there is no record (the records were lost) by its limit file."""
        try:
            limits: list[abi.CardLimit] | None = abi.read_limits(launch.limit_path(folder))
        except (OSError, abi.LimitFileError) as error:
            log.warning("session %s runs without record and limit, and is ended: %s", folder.name, error)
            limits = None
        eighths = max((limit.eighths for limit in limits or []), default=0)
        cards = tuple(limit.uuid for limit in limits or [])
        log.warning("session %s runs, and no record of it was found: it holds %s/8 now", folder.name, eighths)
        state: Literal["live", "held"] = "live" if eighths or limits == [] else "held"  # [] was started without a card
        burst = any(limit.burst for limit in limits or [])
        held = eighths or min(len(cards), 1)
        self._records.put(Record(folder.name, "", cards, held, state, True, time.time(), burst=burst))

    def _folder_of(self, session: str) -> Path:
        return self._sessions / session


def _short_name(state: Path) -> str:
    """A name for an installation that tells it from others on the machine."""
    return hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:12]


def _own(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Unavailable(f"Another agent is running on {path.parent}.") from None
    return descriptor


def _program_folders() -> list[Path]:
    """What a session must be able to read for its server and kernels to start."""
    folders = {Path(sys.prefix), Path(sys.base_prefix), Path(gpuspawner.__file__).parent}
    folders.update(Path(path) for path in sysconfig.get_paths().values() if Path(path).is_dir())
    return sorted(folder.resolve() for folder in folders)
