"""`Stepper`: from a loss to changed weights, in the order that is right.

Scale, backward, and at the last batch of an update: unscale once, clip, step, let the scaler adjust, and move the
scheduler only if the weights have moved. Between the batches of an update, processes of a distributed run do not
exchange gradients.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpuspawner_runtime import choices, elastic
from gpuspawner_runtime.errors import RuntimeFault
from gpuspawner_runtime.precision import loss_of
from gpuspawner_runtime.together import running

_VERSION = 1
#: What to do about a loss or gradient that is not finite.
NONFINITE = ("skip", "raise", "apply")
#: The `no_sync` that is open on a wrapped model; a stepper that takes over closes it.
_open: weakref.WeakKeyDictionary[torch.nn.Module, contextlib.ExitStack] = weakref.WeakKeyDictionary()


class NonFiniteError(RuntimeFault):
    """The loss or a gradient is not finite, and `nonfinite="raise"` was asked for."""


@dataclass(frozen=True)
class StepResult:
    """What became of one batch.

    `updated`: the weights have moved. `skipped`: an update was due and was left out, for the reason in `why`. Neither:
    the batch was added to those before it. `loss` stays on its device; `float(result)` reads it.
    """

    updated: bool
    skipped: bool
    loss: torch.Tensor
    why: str | None = None
    gradient_norm: torch.Tensor | None = None
    scale: float | None = None

    def __float__(self) -> float:
        return float(self.loss)


class Stepper:
    """Turns losses into updates.

    `optimizer`, `scheduler`: one or several; schedulers are moved once for each update. `scaler`: for float16; one
    that a loss of `fast` brings along is taken over. `accumulate`: batches for each update, their losses averaged.
    `clip`: largest 2-norm of the gradients. `nonfinite`: `skip` leaves out an update whose loss or gradient is not
    finite (one look at the card for each update), `raise` raises `NonFiniteError`, `apply` looks only with a scaler.

    Raises RuntimeFault for values that are not allowed.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        scheduler: Any = None,
        scaler: torch.amp.GradScaler | None = None,
        accumulate: int = 1,
        clip: float | None = None,
        nonfinite: str = "skip",
    ) -> None:
        if clip is not None and not (isinstance(clip, (int, float)) and 0 < clip < math.inf):
            raise RuntimeFault(
                f"clip is {clip!r}: it must be a number above 0, or None.", field="clip", given=clip, allowed="> 0"
            )
        if nonfinite not in NONFINITE:
            raise RuntimeFault(
                f"nonfinite is {nonfinite!r}: it must be {', '.join(NONFINITE[:-1])} or {NONFINITE[-1]}.",
                field="nonfinite",
                given=nonfinite,
                allowed=list(NONFINITE),
            )
        self.model = model
        self.optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
        self.schedulers = _listed(scheduler)
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.clip, self.nonfinite = clip, nonfinite
        #: batches seen, updates done, updates left out, batches whose loss was not finite
        self.batches = self.updates = self.skips = 0
        self._accumulate = self._wanted = _whole_number("accumulate", accumulate)
        #: The part that the next loss has in its update, in place of 1 / `accumulate`; used once.
        self.weight: float | None = None
        #: Whether parts of the loader's batch are still to come (`MicroBatches`): it is a step only with the last one.
        self.more = False
        self._micro = 0
        self._fine: torch.Tensor | None = None
        self._scaler_state: dict[str, Any] | None = None
        self._unscaled = False
        self._prepare()

    @property
    def accumulate(self) -> int:
        """Batches for each update. A new value counts from the next update on."""
        return self._wanted

    @accumulate.setter
    def accumulate(self, value: int) -> None:
        self._wanted = _whole_number("accumulate", value)
        if self._micro == 0:
            self._accumulate = self._wanted
            self._prepare()

    @property
    def between(self) -> bool:
        """Whether no update is half done: the moment at which a checkpoint needs no gradients."""
        return self._micro == 0

    def step(self, loss: Any, weight: float | None = None) -> StepResult:
        """Take the loss of one batch. `weight`: its part of the update, in place of 1 / `accumulate`.

        Raises RuntimeFault for what is no loss, `NonFiniteError` if that was asked for.
        """
        value = loss_of(loss)
        if value is None or not value.requires_grad:
            raise RuntimeFault(
                "step needs the loss itself, a scalar tensor with its graph (not loss.item(), not detached). "
                "For a training step that calls backward and the optimizer itself, use count(loss).",
                field="loss",
                given=type(loss).__name__ if value is None else "a tensor without a graph",
                allowed="a scalar tensor that requires grad",
            )
        self._take_scaler(value)
        self.batches += 1
        if self.nonfinite != "apply":
            fine = torch.isfinite(value.detach()).all()
            self._fine = fine if self._fine is None else self._fine & fine
        weight = self.weight if weight is None else weight
        self.weight = None
        if weight is None:
            weight = 1.0 / self._accumulate
        part = value if weight == 1 else value * weight
        (part if self.scaler is None else self.scaler.scale(part)).backward()
        self._micro += 1
        if self._micro < self._accumulate:
            self._prepare()
            return StepResult(False, False, value.detach())
        return self._finish(value.detach())

    def count(self, loss: Any = None) -> StepResult:
        """Count a step that has called backward and the optimizer itself."""
        self.batches += 1
        self.updates += 1
        elastic.check()
        value = loss if isinstance(loss, torch.Tensor) else torch.tensor(math.nan if loss is None else float(loss))
        return StepResult(True, False, value.detach())

    def flush(self, loss: torch.Tensor | None = None) -> StepResult | None:
        """Do the update that the batches so far make, though fewer than `accumulate`; None if there are none.

        Their losses were divided by `accumulate`, so it is a smaller update, not a wrong one.
        """
        return self._finish(torch.tensor(math.nan) if loss is None else loss.detach()) if self._micro else None

    def state_dict(self) -> dict[str, Any]:
        """Counters, scaler, choices of `fast`, and half an update's gradients: tensors and primitives only."""
        scaler = self._scaler_state if self.scaler is None else self.scaler.state_dict()
        half = None
        # Of a batch whose parts are still to come nothing is kept: it is read again as a whole.
        micro = 0 if self.more else self._micro
        if micro:
            half = {n: p.grad.detach().clone() for n, p in self.model.named_parameters() if p.grad is not None}
        return {
            "version": _VERSION,
            "batches": self.batches,
            "updates": self.updates,
            "skips": self.skips,
            "micro": micro,
            "accumulate": self._accumulate,
            "scaler": dict(scaler) if scaler else None,
            "gradients": half,
            "fast": choices.export(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken. Raises RuntimeFault for a state of another version."""
        if state.get("version") != _VERSION:
            raise RuntimeFault(
                f"The stepper's state has version {state.get('version')!r}, and this one reads {_VERSION}.",
                field="version",
                given=state.get("version"),
                allowed=_VERSION,
            )
        self.batches, self.updates, self.skips = state["batches"], state["updates"], state["skips"]
        choices.adopt(state.get("fast") or {})
        self._scaler_state = state.get("scaler")
        if self.scaler is not None and self._scaler_state:
            self.scaler.load_state_dict(self._scaler_state)
        self._micro = state["micro"]
        if self._micro:
            self._accumulate = state["accumulate"]
            named = dict(self.model.named_parameters())
            for name, gradient in (state.get("gradients") or {}).items():
                named[name].grad = gradient.to(named[name].device, copy=True)
        self._prepare()

    def close(self) -> None:
        """Let go of the model: its processes exchange gradients again with every batch."""
        _let_sync(self.model)

    def _finish(self, loss: torch.Tensor) -> StepResult:
        norm = None
        if self.clip is not None:
            self._unscale()
            parameters = [
                p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]
            ]
            norm = torch.nn.utils.clip_grad_norm_(parameters, self.clip)
        why = self._wrong(norm)
        if why is not None and self.nonfinite == "raise":
            self._reset()
            raise NonFiniteError(f"At batch {self.batches}, {why}.", code="not_finite")
        scale = None
        if self.scaler is not None:
            # The scaler is told in any case: it leaves the update out itself and tries a smaller scale.
            why, scale = self._step_scaled(why)
        elif why is None:
            for optimizer in self.optimizers:
                optimizer.step()
        if why is None:
            self.updates += 1
            for scheduler in self.schedulers:
                scheduler.step()
        else:
            self.skips += 1
        self._reset()
        # Between two updates is when a share may change what the next one looks like.
        elastic.check()
        return StepResult(why is None, why is not None, loss, why, norm, scale)

    def _unscale(self) -> None:
        """Bring the gradients to their true size, once for each update."""
        if self.scaler is None or self._unscaled:
            return
        for optimizer in filter(_has_gradients, self.optimizers):
            self.scaler.unscale_(optimizer)
        self._unscaled = True

    def _step_scaled(self, why: str | None) -> tuple[str | None, float]:
        assert self.scaler is not None
        before = self.scaler.get_scale()
        self._unscale()
        moved: list[bool] = []
        # The scaler knows nothing of an optimizer without gradients, and is not asked about it.
        concerned = list(filter(_has_gradients, self.optimizers))
        if not concerned:
            return why, before
        if why is None:
            for optimizer in concerned:
                hook = optimizer.register_step_post_hook(lambda *_: moved.append(True))
                self.scaler.step(optimizer)
                hook.remove()
        self.scaler.update()
        after = self.scaler.get_scale()
        # An optimizer that takes the scaler's verdict along (fused) is called and leaves the weights; the scale tells.
        if why is None and (after < before or not moved):
            why = _OVERFLOW
        return why, after

    def _wrong(self, norm: torch.Tensor | None) -> str | None:
        if self.nonfinite == "apply":
            return None
        fine = self._fine if self._fine is not None else torch.tensor(True)
        if running():
            # One process's bad loss is in the gradients of all: they skip together.
            word = fine.to(torch.float32)
            torch.distributed.all_reduce(word, torch.distributed.ReduceOp.MIN)
            fine = word > 0
        # With a scaler, gradients that overflow are its business: they mean a scale too large, not a fault.
        if norm is None or self.scaler is not None:
            return None if bool(fine) else _LOSS
        norm_fine = torch.isfinite(norm)
        if bool(fine & norm_fine.to(fine.device)):
            return None
        return _GRADIENT if bool(fine) else _LOSS

    def _reset(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._micro, self._fine, self._unscaled = 0, None, False
        self._accumulate = self._wanted
        self._prepare()

    def _prepare(self) -> None:
        """Say beforehand whether the next batch exchanges gradients: its forward pass must know already."""
        last = self._micro + 1 >= self._accumulate
        if last:
            _let_sync(self.model)
        elif self.model not in _open:
            make: Callable[[], Any] | None = getattr(self.model, "no_sync", None)
            if make is not None:
                stack = contextlib.ExitStack()
                stack.enter_context(make())
                _open[self.model] = stack

    def _take_scaler(self, loss: torch.Tensor) -> None:
        brought = getattr(loss, "_gpuspawner_scaler", None)
        if brought is None or brought is self.scaler:
            return
        if self.scaler is None:
            self.scaler = brought
            if self._scaler_state:
                brought.load_state_dict(self._scaler_state)


_LOSS = "the loss is not finite"
_GRADIENT = "a gradient is not finite"
_OVERFLOW = "a gradient has overflowed, and the scale of the loss was lowered"


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _let_sync(model: torch.nn.Module) -> None:
    stack = _open.pop(model, None)
    if stack is not None:
        stack.close()


def _listed(scheduler: Any) -> list[Any]:
    if scheduler is None:
        return []
    schedulers = list(scheduler) if isinstance(scheduler, (list, tuple)) else [scheduler]
    for each in schedulers:
        if isinstance(each, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise RuntimeFault(
                "scheduler is a ReduceLROnPlateau, which needs a measure: leave it out, and call its step(measure).",
                field="scheduler",
                given="ReduceLROnPlateau",
            )
    return schedulers


def _whole_number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RuntimeFault(
            f"{name} is {value!r}: it must be a whole number from 1.", field=name, given=value, allowed=">= 1"
        )
    return value
