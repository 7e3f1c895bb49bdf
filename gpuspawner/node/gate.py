"""The last gate: compares what the driver shows of each session with its limits, and acts on excess by policy."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from gpuspawner.errors import InvalidInput
from gpuspawner.node.excused import Excused
from gpuspawner.node.limits import abi, launch
from gpuspawner.node.offences import MOST_ENDED, Notice, Offences, Verdict
from gpuspawner.node.presence import LAUNCHED, Presence
from gpuspawner.node.records import Record, Records
from gpuspawner.node.sight import Holder, Sight, end_process

log = logging.getLogger(__name__)

Action = Literal["warn", "freeze", "end"]
ACTIONS: tuple[Action, ...] = ("warn", "freeze", "end")
ComputeAction = Literal["warn", "end"]
COMPUTE_ACTIONS: tuple[ComputeAction, ...] = ("warn", "end")

#: A context where the node could not measure one, so that the shim charges nothing for it.
UNMEASURED_CONTEXT_BYTES = 1 << 30


@dataclass(frozen=True)
class Policy:
    """What is done about excess.

    `warn`: say it. `freeze`: new allocations of the session fail too. `end`: and after `seconds` the process that
    holds what it did not account for is ended. `tolerance_bytes` for each session and card: memory that honest
    programs get from the driver without asking for it, such as code loaded onto the card. `compute`: the same for who
    computes longer than its share, `end` after `seconds` of it.
    """

    action: Action = "end"
    seconds: float = 30.0
    tolerance_bytes: int = 512 << 20
    compute: ComputeAction = "warn"

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Policy:
        """From GPUSPAWNER_EXCESS_POLICY, _SECONDS, _TOLERANCE_MIB, GPUSPAWNER_COMPUTE_POLICY. Raises InvalidInput."""
        action = env.get("GPUSPAWNER_EXCESS_POLICY") or cls.action
        if action not in ACTIONS:
            raise _not_allowed("GPUSPAWNER_EXCESS_POLICY", action, ", ".join(ACTIONS))
        compute = env.get("GPUSPAWNER_COMPUTE_POLICY") or cls.compute
        if compute not in COMPUTE_ACTIONS:
            raise _not_allowed("GPUSPAWNER_COMPUTE_POLICY", compute, ", ".join(COMPUTE_ACTIONS))
        return cls(
            action,
            _whole(env, "GPUSPAWNER_EXCESS_SECONDS", int(cls.seconds), 86_400),
            _whole(env, "GPUSPAWNER_EXCESS_TOLERANCE_MIB", cls.tolerance_bytes >> 20, 1 << 20) << 20,
            compute,
        )


@dataclass
class _Case:
    """A session that is over its limit on a card."""

    user: str
    since: float  # seconds since the epoch, for people
    began: float  # by the gate's clock, for the deadline
    over: int = 0
    message: str = ""
    ended: set[tuple[int, int]] = field(default_factory=set)


class Gate:
    """Watches for excess. Thread-safe; `lock` is the agent's, under which records and limits change.

    `allowed`: bytes that a session may use of a card. `context_bytes`: what a context takes on a card, 0 where that is
    not known. `freeze`: put a session's limits in force anew, since `frozen` has changed.
    """

    def __init__(
        self,
        sight: Sight,
        records: Records,
        lock: AbstractContextManager[object],
        policy: Policy,
        *,
        folder_of: Callable[[str], Path],
        allowed: Callable[[Record, str], int],
        context_bytes: Callable[[str], int],
        freeze: Callable[[Record], None],
        clock: Callable[[], float] = time.monotonic,
        presence: Presence = LAUNCHED,
    ) -> None:
        self._sight = sight
        self._records = records
        self._lock = lock
        self._policy = policy
        self._folder_of = folder_of
        self._allowed = allowed
        self._context_bytes = context_bytes
        self._freeze = freeze
        self._clock = clock
        self._presence = presence
        self._cases: dict[tuple[str, str], _Case] = {}
        self._frozen: set[str] = set()
        self._offences = Offences(clock)
        self._strangers: dict[str, set[tuple[int, int | None]]] = {}
        self._excused = Excused(records.database)

    def look(self, cards: Iterable[str]) -> list[Verdict]:
        """Look at everybody on `cards` once. What the driver does not say is not judged."""
        with self._lock:
            before = {record.session: record for record in self._records.all()}
        shown = {card: self._sight.holders(card, before.values()) for card in cards}
        verdicts: list[Verdict] = []
        with self._lock:
            now = {record.session: record for record in self._records.all()}
            for card, holders in shown.items():
                if holders is None:
                    continue
                self._tell_strangers(card, holders)
                for session, record in before.items():
                    own = [holder for holder in holders if holder.session == session]
                    if session not in now or now[session].state != record.state:
                        continue  # it has ended meanwhile
                    if not own and card not in record.cards:
                        continue
                    if record.state == "held":
                        verdicts += self._clear(record, own)
                    else:
                        # A resize may have come between the two, and the reading be from before or after it.
                        allowed = max(self._allowed(record, card), self._allowed(now[session], card))
                        verdicts += self._judge(record, card, own, allowed)
            self._follow_freezes(now)
            self._forget_others({session for session, record in now.items() if record.state == "live"})
        return verdicts

    def frozen(self, session: str) -> bool:
        """Whether new allocations of the session are to fail."""
        with self._lock:
            return session in self._frozen

    def excuse(self, record: Record, card: str, used_bytes: int) -> None:
        """The limit was lowered below what the session uses: that much, and less as it falls, is no offence."""
        with self._lock:
            self._excused.put(record.session, card, used_bytes)

    def notices(self, session: str) -> list[Notice]:
        """What the session's user should know now."""
        with self._lock:
            found = []
            for (name, card), case in self._cases.items():
                if name == session:
                    found.append(Notice("over_limit", case.message, case.since, self._deadline(case, card)))
                    if session in self._frozen:
                        text = "New allocations on the card fail until the excess is gone."
                        found.append(Notice("frozen", text, case.since))
            for card, excused in self._excused.of(session).items():
                text = (
                    f"This session's share was made smaller than what it uses of card {card} ({gib(excused)}). "
                    "New allocations fail until enough is freed."
                )
                found.append(Notice("shrunk", text, self._excused.since(session, card)))
            return [*found, *self._offences.notices(session)]

    def _judge(self, record: Record, card: str, own: list[Holder], allowed: int) -> list[Verdict]:
        session, key = record.session, (record.session, card)
        if any(holder.used_bytes is None for holder in own):
            return []
        used = sum(holder.used_bytes or 0 for holder in own)
        excused = self._excused.fall(session, card, used, allowed)
        tolerance = self._policy.tolerance_bytes
        if not self._context_bytes(card):
            tolerance += UNMEASURED_CONTEXT_BYTES * len(own)
        over = used - max(allowed, excused)
        if over <= tolerance:
            if key in self._cases:
                self._close(key)
                log.info("session %s is back within its share of card %s", session, card)
            return []
        case = self._cases.get(key)
        if case is None:
            case = self._cases[key] = _Case(owner(record), time.time(), self._clock())
        case.over = over
        ranked = self._offenders(session, card, own)
        case.message = self._words(record, card, used, allowed, case, ranked)
        verdicts = self._tell(session, card, f"it uses {gib(used)} of card {card} and may use {gib(allowed)}")
        began = min(each.began for each in self._cases_of(case.user, card))
        if self._policy.action == "end" and self._clock() >= began + self._grace(case, card):
            verdicts += self._end(record, card, case, ranked)
        return verdicts

    def _close(self, key: tuple[str, str]) -> None:
        """The session is within its limit again, or has ended: how long it was over counts."""
        case = self._cases.pop(key)
        self._offences.spend(case.user, key[1], self._clock() - case.began)

    def _tell(self, session: str, card: str, reason: str) -> list[Verdict]:
        if not self._offences.to_tell(session, card):
            return []
        log.warning("session %s: %s", session, reason)
        return [Verdict(session, reason)]

    def _end(self, record: Record, card: str, case: _Case, ranked: list[tuple[Holder, int]]) -> list[Verdict]:
        """End processes, those with most that they did not account for first, until the excess would be gone."""
        verdicts: list[Verdict] = []
        left, count = case.over, len(self._offences.of(case.user, card).ended)
        for holder, undeclared in ranked:
            if left <= 0:
                break
            used = holder.used_bytes or 0
            left -= used
            if holder.started is None or (holder.pid, holder.started) in case.ended:
                continue  # it is going, and the driver will show it
            case.ended.add((holder.pid, holder.started))
            name = name_of(holder.pid)
            if not end_process(holder.pid, holder.started):
                continue
            text = f"process {holder.pid} ({name}) was ended: it held {gib(used)} of card {card}"
            text += f", {gib(undeclared)} of it past this session's limit" if undeclared else ""
            log.warning("session %s: %s", record.session, text)
            notice = Notice("process_ended", f"{text[0].upper()}{text[1:]}.", time.time())
            count = self._offences.ended(case.user, card, notice, record.session)
            verdicts.append(Verdict(record.session, text))
        if count >= MOST_ENDED:
            reason = f"{count} processes of its user were ended within the hour for memory past a limit"
            verdicts.append(Verdict(record.session, reason, hopeless=True))
        return verdicts

    def _clear(self, record: Record, own: list[Holder]) -> list[Verdict]:
        """Nothing of an ended session may stay: a process that slipped out of it is ended."""
        verdicts = []
        for holder in own:
            if holder.started is not None and not self._presence.alive(self._folder_of(record.session)):
                name = name_of(holder.pid)
                if end_process(holder.pid, holder.started):
                    reason = f"process {holder.pid} ({name}) outlived the session and was ended"
                    log.warning("session %s: %s", record.session, reason)
                    verdicts.append(Verdict(record.session, reason))
        return verdicts

    def _offenders(self, session: str, card: str, own: list[Holder]) -> list[tuple[Holder, int]]:
        """The holders with the bytes that each did not account for, most first.

        What they say of themselves is only used to choose among the session's own processes.
        """
        try:
            usages = abi.read_usage(launch.usage_path(self._folder_of(session)))
        except (OSError, ValueError):
            usages = []
        said = {usage.pid: usage.bytes for usage in usages if usage.uuid == card}
        ranked = []
        for holder in own:
            used = holder.used_bytes or 0
            ranked.append((holder, used - min(used, said.get(_pid_inside(holder.pid), 0))))
        return sorted(ranked, key=lambda each: (each[1], each[0].used_bytes or 0), reverse=True)

    def _words(
        self, record: Record, card: str, used: int, allowed: int, case: _Case, ranked: list[tuple[Holder, int]]
    ) -> str:
        text = f"This session uses {gib(used)} of card {card} and may use {gib(allowed)}."
        deadline = self._deadline(case, card)
        if deadline is None or not ranked:
            return f"{text} Free {gib(used - allowed)}."
        pid = ranked[0][0].pid
        when = datetime.fromtimestamp(deadline, UTC).strftime("%H:%M:%S")
        return f"{text} Free {gib(used - allowed)} before {when} UTC, or process {pid} ({name_of(pid)}) is ended."

    def _grace(self, case: _Case, card: str) -> float:
        """Seconds from the first sight of excess to the end of a process: what is left of them, so that coming back
        within the limit for a moment, or in another session, gains nothing; none for who had one ended lately."""
        return self._offences.of(case.user, card).grace(self._policy.seconds)

    def _deadline(self, case: _Case, card: str) -> float | None:
        if self._policy.action != "end":
            return None
        return min(each.since for each in self._cases_of(case.user, card)) + self._grace(case, card)

    def _cases_of(self, user: str, card: str) -> list[_Case]:
        """All sessions of one user are one as to its grace on a card."""
        return [case for (_, on), case in self._cases.items() if on == card and case.user == user]

    def _follow_freezes(self, records: Mapping[str, Record]) -> None:
        wanted = {session for session, _ in self._cases} if self._policy.action != "warn" else set()
        changed = wanted ^ self._frozen
        self._frozen = wanted
        for session in changed:
            if session in records and records[session].state == "live":
                self._freeze(records[session])

    def _forget_others(self, live: set[str]) -> None:
        for key in [key for key in self._cases if key[0] not in live]:
            self._close(key)
        self._frozen &= live
        self._excused.keep(live)
        self._offences.forget(live)

    def _tell_strangers(self, card: str, holders: list[Holder]) -> None:
        now = {(holder.pid, holder.started) for holder in holders if holder.session is None}
        for pid, started in sorted(now - self._strangers.get(card, set()), key=lambda each: each[0]):
            if started is not None:
                log.warning("process %d (%s) holds memory of card %s and is of no session", pid, name_of(pid), card)
        self._strangers[card] = now


def owner(record: Record) -> str:
    """Whose offences a session's are: its user's, or its own where that is not known (it was found running)."""
    return record.user or record.session


def gib(size: int) -> str:
    """Bytes as GiB, rounded up, so that freeing the amount shown is always enough."""
    return f"{-(-size * 100 // 2**30) / 100:.2f} GiB"


def name_of(pid: int) -> str:
    """A process's own name for itself, made harmless: a session chooses it."""
    try:
        text = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "gone"
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-+") else "?" for c in text) or "?"


def _pid_inside(pid: int) -> int:
    """The process's id in its own PID namespace, by which it is known in the usage file."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return pid
    line = next((line for line in text.splitlines() if line.startswith("NSpid:")), "")
    return int(line.split()[-1]) if len(line.split()) > 1 else pid


def _whole(env: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = env.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= 8 and int(text) <= most):
        raise _not_allowed(name, text, f"a whole number from 0 to {most}")
    return int(text)


def _not_allowed(name: str, given: str, allowed: str) -> InvalidInput:
    return InvalidInput(
        f"{name}: {given[:40]!r} is not allowed. Allowed: {allowed}.", field=name, given=given, allowed=allowed
    )
