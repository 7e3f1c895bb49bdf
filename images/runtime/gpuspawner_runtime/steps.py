"""One training step after the loss is known: scale, accumulate, unscale, clip, update or skip, schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuspawner_runtime.errors import RuntimeFault


@dataclass(frozen=True)
class StepResult:
    """A step. `updated`: the optimizer moved. `skipped`: it would have, but for gradients that are not finite."""

    updated: bool
    skipped: bool
    grad_norm: float | None = None


class Stepper:
    """Turns losses into optimizer steps.

    `accumulate`: micro-batches for each optimizer step (the loss is divided by it). `clip`: largest norm of all
    gradients together, after unscaling. `scaler`: a `torch.amp.GradScaler` or None.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        scheduler: Any = None,
        scaler: Any = None,
        accumulate: int = 1,
        clip: float | None = None,
    ) -> None:
        if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
            raise RuntimeFault(
                f"accumulate: {accumulate!r} is not a whole number of batches from 1 on.",
                field="accumulate",
                given=accumulate,
                allowed=">= 1",
            )
        self.model, self.optimizer, self.scheduler, self.scaler = model, optimizer, scheduler, scaler
        self.accumulate, self.clip = accumulate, clip
        self.micro = 0  # batches since the last optimizer step
        self.updates = 0
        self.skips = 0

    def step(self, loss: Any) -> StepResult:
        """Backward of `loss` (a scalar tensor), and the optimizer's step when enough were accumulated."""
        import torch

        scaled = loss / self.accumulate if self.accumulate > 1 else loss
        (self.scaler.scale(scaled) if self.scaler is not None else scaled).backward()
        self.micro += 1
        if self.micro < self.accumulate:
            return StepResult(updated=False, skipped=False)
        self.micro = 0
        norm = None
        if self.scaler is not None and self.clip is not None:
            self.scaler.unscale_(self.optimizer)
        if self.clip is not None:
            norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip))
        skipped = False
        if self.scaler is not None:
            before = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            skipped = self.scaler.get_scale() < before
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if skipped:
            self.skips += 1
        else:
            self.updates += 1
            if self.scheduler is not None:
                self.scheduler.step()
        return StepResult(updated=not skipped, skipped=skipped, grad_norm=norm)

    def state_dict(self) -> dict[str, Any]:
        """Counters; optimizer, scheduler and scaler have their own state."""
        return {"micro": self.micro, "updates": self.updates, "skips": self.skips}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Counters as `state_dict` gave them."""
        self.micro, self.updates, self.skips = int(state["micro"]), int(state["updates"]), int(state["skips"])
