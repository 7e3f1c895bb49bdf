"""Running a step in several ways, on the real model, and winding everything back: who is right, who is fastest."""

from __future__ import annotations

import contextlib
import gc
import io
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpuspawner_runtime.precision import EAGER, TOLERANCES, Tolerance, Way, distance, loss_of, tensors_in
from gpuspawner_runtime.rollback import Reached, Snapshot

#: A way is kept only if it is faster than eager by this part, since two runs of one program differ by some percent.
MARGIN = 0.03
_FEWEST, _MOST = 3, 15
#: A way that needs this many times eager's time when warm is not timed any further.
_HOPELESS = 1.5
_FIRST_SCALE = 65536.0


class Unmeasurable(Exception):
    """Why nothing can be measured, as the end of a sentence that begins with "eager kept:"."""


@dataclass
class Outcome:
    """What became of one way. Times in seconds; `problem` is None for a way that may be chosen."""

    way: Way
    seconds: list[float] = field(default_factory=list)
    #: eager's time over this way's, each pair from the same round
    ratios: list[float] = field(default_factory=list)
    loss_error: float | None = None
    gradient_error: float | None = None
    compile_seconds: float | None = None
    scale: float | None = None
    problem: str | None = None

    @property
    def median(self) -> float | None:
        """Median time of a step; None where it was not timed."""
        return statistics.median(self.seconds) if self.seconds else None


@dataclass
class _Run:
    seconds: float
    loss: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    used_random: bool


class Trial:
    """One measurement of a step with one set of arguments. Use as a context: leaving it restores the state."""

    def __init__(
        self,
        step: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        tolerance: Tolerance | None = None,
        budget: float = 10.0,
    ) -> None:
        self._step, self._args, self._kwargs = step, args, kwargs
        self._tolerance, self._budget = tolerance, budget
        self.reached = Reached(step, [*args, *kwargs.values()])
        self.device = _device(self.reached)
        self._parameters = [p for p in self.reached.parameters if p.requires_grad]
        self._whole = False
        self._base: _Run | None = None
        self._spread = (0.0, 0.0)

    def __enter__(self) -> Trial:
        self._snapshot = Snapshot(self.reached)
        if self._snapshot.unrepeatable:
            raise Unmeasurable(self._snapshot.unrepeatable)
        self._quiet = contextlib.redirect_stdout(io.StringIO())
        self._quiet.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._quiet.__exit__(None, None, None)
        self._base = None
        self._snapshot.restore()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def eager(self) -> Outcome:
        """Run eager, learn what kind of step it is and how far two runs of it are apart. Raises `Unmeasurable`."""
        outcome = Outcome(EAGER)
        try:
            self._base = self._run(EAGER, self._step)
            again = self._run(EAGER, self._step)
            self._note_spread(again)
            if self._base.used_random:
                # Ways draw their random numbers differently: they may be as far off as other numbers make eager.
                for seed in (1, 2):
                    self._note_spread(self._run(EAGER, self._step, seed))
        except Unmeasurable:
            raise
        except Exception as error:
            # The caller's own call will raise it again, outside of the measurement.
            raise Unmeasurable(f"the step fails ({_short(error)})") from error
        if not math.isfinite(sum(self._spread)) or not all(map(_finite, self._base.loss)):
            raise Unmeasurable("its loss or gradients are not finite, so nothing can be compared")
        outcome.loss_error = outcome.gradient_error = 0.0
        outcome.seconds = [again.seconds, self._run(EAGER, self._step, keep=False).seconds]
        return outcome

    def compare(self, way: Way, call: Callable[..., Any], eager_seconds: float) -> Outcome:
        """Run one way until warm and compare it with eager; what is wrong stands in `problem`. Never raises."""
        outcome = Outcome(way)
        try:
            started = time.perf_counter()
            run = self._scaled(way, call, outcome)
            first = time.perf_counter() - started
            self._judge(outcome, run)
            if outcome.problem is not None:
                return outcome
            # The best of a few: one slow moment of the machine must not decide.
            warm = math.inf if way.compiled else run.seconds
            for _ in range(3):
                if warm <= _HOPELESS * eager_seconds:
                    break
                warm = min(warm, self._run(way, call, keep=False, scale=outcome.scale).seconds)
            if way.compiled:
                outcome.compile_seconds = max(0.0, first - warm)
            if warm > _HOPELESS * eager_seconds:
                outcome.seconds = [warm]
                outcome.problem = f"{eager_seconds / warm:.2f}x"
        except torch.OutOfMemoryError:
            outcome.problem = "does not fit into the card's memory"
        except Exception as error:
            outcome.problem = f"failed ({_short(error)})"
        return outcome

    def time(self, eager: Outcome, ways: Sequence[tuple[Outcome, Callable[..., Any]]], rounds: int) -> None:
        """Time eager and the others in turns, so that a slow moment of the machine meets all of them."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in range(rounds):
                base = self._run(EAGER, self._step, keep=False).seconds
                eager.seconds.append(base)
                for outcome, call in ways:
                    seconds = self._run(outcome.way, call, keep=False, scale=outcome.scale).seconds
                    outcome.seconds.append(seconds)
                    outcome.ratios.append(base / seconds)
        finally:
            if collecting:
                gc.enable()

    def rounds(self, seconds_for_one: float) -> int:
        """How many rounds the budget allows."""
        return max(_FEWEST, min(_MOST, int(self._budget / max(seconds_for_one, 1e-6))))

    def _note_spread(self, run: _Run) -> None:
        assert self._base is not None
        self._spread = (
            max(self._spread[0], distance(run.loss, self._base.loss)),
            max(self._spread[1], distance(run.gradients, self._base.gradients)),
        )

    def _scaled(self, way: Way, call: Callable[..., Any], outcome: Outcome) -> _Run:
        """The first run; for float16 with the largest scale of the loss at which no gradient overflows."""
        if way.dtype != "float16" or self._whole:
            return self._run(way, call)
        outcome.scale = _FIRST_SCALE
        while True:
            run = self._run(way, call, scale=outcome.scale)
            if outcome.scale <= 1 or all(g is None or _finite(g) for g in run.gradients):
                return run
            outcome.scale /= 16

    def _judge(self, outcome: Outcome, run: _Run) -> None:
        assert self._base is not None
        allowed = self._tolerance or TOLERANCES[outcome.way.dtype]
        outcome.loss_error = distance(run.loss, self._base.loss)
        outcome.gradient_error = distance(run.gradients, self._base.gradients)
        if outcome.loss_error > allowed.loss + self._spread[0]:
            outcome.problem = f"off by {outcome.loss_error:.1%} in the loss"
        elif outcome.gradient_error > allowed.gradient + 1.5 * self._spread[1]:
            outcome.problem = f"off by {outcome.gradient_error:.1%} in the gradients"

    def _run(
        self, way: Way, call: Callable[..., Any], seed: int | None = None, scale: float | None = None, keep: bool = True
    ) -> _Run:
        self._snapshot.restore()
        for parameter in self._parameters:
            parameter.grad = None
        if seed is not None:
            torch.manual_seed(seed)
        before = _random_state(self.device)
        versions = [parameter._version for parameter in self._parameters]
        self._wait()
        started = time.perf_counter()
        with way.context(self.device.type):
            result = call(*self._args, **self._kwargs)
        if self._base is None:
            # Gradients that stand here, or weights that have moved, are the step's own doing.
            moved = versions != [parameter._version for parameter in self._parameters]
            self._whole = moved or any(p.grad is not None for p in self._parameters)
        self._backward(result, scale or 1.0)
        self._wait()
        seconds = time.perf_counter() - started
        if not keep:
            return _Run(seconds, [], [], False)
        gradients = [parameter.grad for parameter in self._parameters]
        if scale is not None:
            gradients = [None if g is None else g.double() / scale for g in gradients]
        for parameter in self._parameters:
            parameter.grad = None
        kept = _kept(result)
        if self._whole:  # the next loss tells whether the update was right
            with way.context(self.device.type):
                kept += _kept(call(*self._args, **self._kwargs))
        return _Run(seconds, kept, gradients, not torch.equal(before, _random_state(self.device)))

    def _backward(self, result: Any, scale: float) -> None:
        """What `Stepper` would do with the loss, unless the step has done it itself."""
        loss = loss_of(result)
        if loss is not None and loss.requires_grad and not self._whole:
            (loss * scale if scale != 1 else loss).backward()
        elif self._base is None and not self._whole and any(t.requires_grad for t in tensors_in(result)):
            raise Unmeasurable("the step returns no loss (a scalar, or one named `loss`)")

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def faster(outcome: Outcome) -> float | None:
    """How many times as fast as eager, by the median of the rounds; None unless it is surely faster.

    Surely: by more than `MARGIN`, and in three of four rounds.
    """
    ratios = sorted(outcome.ratios)
    if outcome.problem is not None or len(ratios) < _FEWEST:
        return None
    speed = statistics.median(ratios)
    return speed if speed > 1 + MARGIN and ratios[len(ratios) // 4] > 1 else None


def _device(reached: Reached) -> torch.device:
    tensors = [*reached.parameters, *(each for each in reached.objects if isinstance(each, torch.Tensor))]
    return next((t.device for t in tensors if t.device.type != "cpu"), torch.device("cpu"))


def _kept(result: Any) -> list[torch.Tensor]:
    loss = loss_of(result)
    return [loss.detach().clone()] if loss is not None else [t.detach().clone() for t in tensors_in(result)]


def _random_state(device: torch.device) -> torch.Tensor:
    cpu = torch.get_rng_state()
    return torch.cat([cpu, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else cpu


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _short(error: BaseException) -> str:
    lines = [line for line in map(str.strip, str(error).splitlines()) if line]
    # Some say in their first line only that the second one says it.
    text = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1]).partition(". ")[0]
    return f"{type(error).__name__}: {text[:160]}" if text else type(error).__name__
