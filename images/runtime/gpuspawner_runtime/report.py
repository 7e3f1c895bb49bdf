"""What a run did and what it cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """Figures of a run; None is unknown."""

    run: str
    steps: int
    updates: int
    skipped: int
    lost_steps: int | None
    stall_seconds: float
    seconds: float
    checkpoints: int

    def __str__(self) -> str:
        return (
            f"{self.run}: {self.steps} steps in {self.seconds:.1f} s ({self.updates} updates, {self.skipped} skipped), "
            f"{self.checkpoints} checkpoints, {self.stall_seconds * 1000:.0f} ms stalled"
        )
