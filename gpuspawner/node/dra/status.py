"""What the node says of a claim in its `status.devices[]`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gpuspawner import kubernetes_names as names
from gpuspawner.card import Card
from gpuspawner.node.dra.claims import Outcome, Part, Prepared
from gpuspawner.node.records import Record
from gpuspawner.share import GPUShare, eighths_text


class Statuses:
    """Writes the contents of statuses. Remembers since when each condition is as it is."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[str, str]] = {}

    def content(
        self,
        prepared: Prepared,
        record: Record | None,
        cards: dict[str, Card],
        grade_of: Callable[[str], str],
        refused: Outcome | None = None,
    ) -> dict[str, Any]:
        """The claim with what we say of it, to be applied. `cards` by device name, `grade_of` by uuid."""
        devices = [
            self._device(prepared, part, record, cards.get(part.device), grade_of, refused) for part in prepared.parts
        ]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            # The uid: a claim of that name made since is another one.
            "metadata": {"name": prepared.name, "namespace": prepared.namespace, "uid": prepared.uid},
            "status": {"devices": devices},
        }

    def forget(self, session: str) -> None:
        """Nothing will be said of it any more."""
        for key in [key for key in self._since if key[0] == session]:
            del self._since[key]

    def _device(
        self,
        prepared: Prepared,
        part: Part,
        record: Record | None,
        card: Card | None,
        grade_of: Callable[[str], str],
        refused: Outcome | None,
    ) -> dict[str, Any]:
        eighths = record.eighths if record is not None and record.state == "live" else 0
        found: dict[str, Any] = {"driver": names.DRIVER, "pool": part.pool, "device": part.device}
        if part.share_id:
            found["shareID"] = part.share_id
        if card is not None:
            found["data"] = {
                names.DATA_EIGHTHS: eighths,
                names.DATA_MEMORY: GPUShare(eighths).memory_bytes(card.memory_bytes) if eighths else 0,
                names.DATA_UUID: card.uuid,
                names.DATA_SIMULATED: card.simulated,
                names.DATA_GRADE: grade_of(card.uuid),
                names.DATA_REQUEST: prepared.number,
            }
            if prepared.outcome is not None and prepared.outcome.need_to_free_bytes is not None:
                found["data"][names.DATA_NEED_TO_FREE] = prepared.outcome.need_to_free_bytes
        if eighths:
            ready = Outcome(names.REASON_IN_FORCE, f"{eighths_text(eighths)} of the card is in force.")
        elif refused is not None:
            ready = refused
        else:
            ready = Outcome(names.REASON_ENDED, "The session has ended here.")
        conditions = [self._condition(prepared.session, names.READY, ready)]
        if prepared.outcome is not None:
            conditions.append(self._condition(prepared.session, names.RESIZED, prepared.outcome))
        return {**found, "conditions": conditions}

    def _condition(self, session: str, kind: str, outcome: Outcome) -> dict[str, Any]:
        status = "True" if outcome.reason == names.REASON_IN_FORCE else "False"
        before = self._since.get((session, kind))
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        since = before[1] if before and before[0] == status else now
        self._since[session, kind] = (status, since)
        return {
            "type": kind,
            "status": status,
            "reason": outcome.reason,
            "message": outcome.message[:32_000],
            "lastTransitionTime": since,
        }
