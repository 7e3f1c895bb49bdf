"""What can be done with the shares of a machine, one effect at a time.

The agent itself knows the order in which that is done on one machine. On a cluster more has to be in order, and
`gpuspawner.protocol` has it; whoever follows it does each of its effects here.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuspawner.card import Card
from gpuspawner.errors import Conflict, NotFound
from gpuspawner.node.admission import Admission
from gpuspawner.node.compute import Compute
from gpuspawner.node.gate import Gate
from gpuspawner.node.in_force import InForce
from gpuspawner.node.limits.choice import Enforcers
from gpuspawner.node.presence import Presence
from gpuspawner.node.records import Record, Records
from gpuspawner.node.sight import Sight
from gpuspawner.share import GPUShare


class Hands:
    """The agent's own parts. What changes something is to be done with `lock` held."""

    def __init__(
        self,
        lock: threading.RLock,
        cards: Mapping[str, Card],
        records: Records,
        admission: Admission,
        enforcers: Enforcers,
        in_force: InForce,
        compute: Compute,
        sight: Sight,
        gate: Gate,
        presence: Presence,
        folder_of: Callable[[str], Path],
    ) -> None:
        self.lock = lock
        self._cards = cards
        self._records = records
        self._admission = admission
        self._enforcers = enforcers
        self._in_force = in_force
        self._compute = compute
        self._sight = sight
        self._gate = gate
        self._presence = presence
        self._folder_of = folder_of

    def records(self) -> list[Record]:
        """What is on disk."""
        with self.lock:
            return self._records.all()

    def record(self, session: str) -> Record | None:
        """What is on disk of one session."""
        return self._records.get(session)

    def check_start(self, cards: tuple[str, ...], eighths: int) -> None:
        """Whether the cards are well and give out such a share at all; how much of them is free is not looked at.
        Raises NotFound, Conflict, NoRoom."""
        for uuid in cards:
            if uuid not in self._cards:
                raise NotFound(f"There is no card {uuid} on this machine.", field="card", given=uuid)
            self._admission.check_kind(uuid, eighths, alone=len(cards) == 1)
        self._admission.check_health(cards)

    def check_resize(self, session: str, eighths: int) -> None:
        """Whether a session's share can change while it runs, and the card is well where it is to grow. Raises
        NotFound, Conflict, NoRoom."""
        record = self._records.get(session)
        if record is None or record.state != "live":
            raise NotFound(f"Session {session} has no share on this machine.", code="ended")
        if len(record.cards) != 1:
            raise Conflict(
                "A session with several cards holds them whole; it cannot be resized while it runs.",
                code="not_resizable",
            )
        self._admission.check_live_resize(record.cards[0])
        self._admission.check_kind(record.cards[0], eighths)
        if eighths > record.eighths:
            self._admission.check_health(record.cards)

    def persist(self, session: str, user: str, card: str, limit: int, charged: int) -> None:
        """Eighths of a card are written down for a session: `limit` to be in force, `charged` nobody else's."""
        before = self._records.get(session)
        if before is None:
            over = charged - limit
            self._records.put(Record(session, user, (card,), limit, "live", False, time.time(), over=over))
            return
        cards = before.cards if card in before.cards else (*before.cards, card)
        if charged > limit and limit < before.eighths:
            # Lowered below what may be in use: that much is no offence, as it falls.
            used, allowed = self._sight.used(before), self._in_force.allowed(before, card)
            self._gate.excuse(before, card, allowed if used is None else min(used, allowed))
        self._records.change(session, cards=cards, eighths=limit, over=charged - limit)

    def persist_held(self, session: str) -> None:
        """The session has ended; what is charged stays so."""
        record = self._records.get(session)
        if record is None or record.state == "held":
            return
        self._sight.used(record)
        self._records.change(session, state="held", pids=self._sight.remembered(session))
        self._sight.forget(session)

    def remove(self, session: str) -> None:
        """Nothing is charged to the session any more. Raises where a card cannot be given back yet."""
        record = self._records.get(session)
        if record is not None:
            self._enforcers.release(session, record.cards)
            self._records.remove(session)
        self._sight.forget(session)
        shutil.rmtree(self._folder_of(session), ignore_errors=True)

    def apply(self, session: str, eighths: int) -> None:
        """Put a limit in force for the session's processes. Lowering one is never refused."""
        record = self._records.get(session)
        if record is not None:
            self._in_force.apply(record, eighths, insist=eighths > record.eighths)

    def set_burst(self, session: str, burst: bool) -> None:
        """Let the session compute with what others leave idle, or no longer."""
        record = self._records.get(session)
        if record is not None and record.state == "live" and record.burst != burst:
            self._in_force.apply(self._records.change(session, burst=burst), record.eighths)

    def settle(self, card: str) -> None:
        """Everybody's turn on a card, after a change."""
        self._compute.settle([card])

    def end(self, session: str) -> None:
        """From now on no process of the session should be left."""
        self._presence.end(self._folder_of(session), timeout=1.0)

    def excess(self, session: str, card: str, eighths: int) -> int | None:
        """Bytes in use beyond eighths of a card; None where the driver does not say."""
        record = self._records.get(session)
        used = 0 if record is None else self._sight.used(record)
        allowed = GPUShare(eighths).memory_bytes(self._cards[card].memory_bytes) if eighths else 0
        return None if used is None else max(0, used - allowed)

    def gone(self, session: str) -> bool:
        """Whether the driver shows nothing of the session left."""
        record = self._records.get(session)
        return record is None or self._sight.used(record) == 0
