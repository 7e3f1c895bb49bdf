"""Puts shares in force: tells each card's enforcer, and writes the limit file that the session's programs read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from gpuspawner.card import Card
from gpuspawner.errors import GPUSpawnerError
from gpuspawner.node.compute import WHOLE, Part
from gpuspawner.node.limits import abi
from gpuspawner.node.limits.choice import Enforcers
from gpuspawner.node.records import Record
from gpuspawner.share import GPUShare

log = logging.getLogger(__name__)


class InForce:
    """The limits of a machine's sessions. The agent calls it under its lock.

    `context_bytes`: what a context takes on each card. `frozen`: whether new allocations of a session are to fail.
    `part_of`: which part of a card's time a session may use.
    """

    def __init__(
        self,
        cards: Mapping[str, Card],
        enforcers: Enforcers,
        context_bytes: Mapping[str, int],
        *,
        folder_of: Callable[[str], Path],
        frozen: Callable[[str], bool],
        part_of: Callable[[str, str, int], Part],
    ) -> None:
        self._cards = cards
        self._enforcers = enforcers
        self._context_bytes = context_bytes
        self._folder_of = folder_of
        self._frozen = frozen
        self._part_of = part_of
        self._unsure: set[str] = set()

    def allowed(self, record: Record, uuid: str) -> int:
        """Bytes that a live session may use of a card: none of one on which it holds nothing."""
        if uuid not in record.cards:
            return 0
        return GPUShare(record.eighths).memory_bytes(self._cards[uuid].memory_bytes)

    def visible(self, record: Record, without: Collection[str] = ()) -> list[str]:
        """The uuids by which the session's programs find its cards, or its slices of them."""
        known = [uuid for uuid in record.cards if uuid in self._cards and uuid not in without]
        return [self._enforcers.of(uuid).take(record.session, record.eighths).visible_uuid for uuid in known]

    def apply(self, record: Record, eighths: int, *, insist: bool = True) -> None:
        """Put a share in force. `insist`: whether a driver that does not take the limit is an error."""
        cards = [uuid for uuid in record.cards if uuid in self._cards]
        self._unsure.discard(record.session)
        limits = [self._limit(record, uuid, eighths, insist) for uuid in cards]
        folder = self._folder_of(record.session)
        for part in (folder, folder / "limit"):
            part.mkdir(mode=0o755, exist_ok=True)
        abi.write_limits(folder / "limit" / "limit", limits)

    def settle(self, records: Iterable[Record]) -> None:
        """Put in force anew what the driver did not confirm: it may hold a session to another limit than the record
        says, and what it was silent about it may have done since."""
        by_session = {record.session: record for record in records}
        self._unsure &= by_session.keys()
        for session in list(self._unsure):
            record = by_session[session]
            self.apply(record, record.eighths if record.state == "live" else 0, insist=False)

    def _limit(self, record: Record, uuid: str, eighths: int, insist: bool) -> abi.CardLimit:
        enforcer = self._enforcers.of(uuid)
        place = enforcer.take(record.session, eighths or record.eighths)
        allowed = place.memory_bytes if eighths else 0
        try:
            enforcer.limit(record.session, allowed)
        except GPUSpawnerError as error:
            self._unsure.add(record.session)
            if eighths and insist:
                raise
            log.warning("session %s: %s", record.session, error)
        compute, turn = self._part_of(record.session, uuid, eighths)
        if eighths and place.visible_uuid != uuid:  # a slice of the card is its holder's alone
            compute, turn = WHOLE, 0
        return abi.CardLimit(
            uuid=place.visible_uuid,
            eighths=eighths,
            memory_bytes=allowed,
            context_bytes=self._context_bytes.get(uuid, 0),
            burst=record.burst,
            frozen=self._frozen(record.session),
            compute=compute,
            compute_from=turn,
        )
