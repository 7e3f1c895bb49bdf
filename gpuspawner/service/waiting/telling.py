"""What those who wait are told: where they stand, and why."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpuspawner.errors import NoRoom, NotFound
from gpuspawner.fleet.base import CardState
from gpuspawner.fleet.placement import no_room_reason, place
from gpuspawner.queue import Waiting
from gpuspawner.queue.forecast import Expected
from gpuspawner.service.waiting.entries import Entry
from gpuspawner.service.waiting.parkings import Parking


@dataclass(frozen=True)
class Place:
    """Where somebody stands: `place` counts from 1; `expected` is None where it is not known. `parked`: of one that ran
    before."""

    row: Entry
    place: int | None
    reason: str
    waited: float
    expected: Expected | None = None
    in_time: bool | None = None
    parked: Parking | None = None


class Steady:
    """Seconds since the epoch that never go back, whatever the machine's clock does."""

    def __init__(self, not_before: float = 0.0) -> None:
        self._began = max(time.time(), not_before)
        self._ticks = time.monotonic()

    def __call__(self) -> float:
        return self._began + time.monotonic() - self._ticks


def reason_of(asked: Waiting, states: list[CardState], before: int) -> str:
    """Why somebody waits, in a sentence or two."""
    matching = [state for state in states if state.card.is_model(asked.share.model)]
    allowed = [state for state in matching if state.card.uuid not in asked.never]
    try:
        place(asked.share, allowed)
    except (NoRoom, NotFound):
        reason = no_room_reason(asked.share, allowed or matching)
    else:
        reason = "What is free is kept for somebody who goes before."
    ahead = "" if not before else f" {before} {'is' if before == 1 else 'are'} before this one."
    return f"{reason}{ahead}"
