"""The ways in which a training step can be run, and when two of them agree."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Way:
    """One way to run a step: the type that autocast computes in (None: as written), and whether compiled."""

    dtype: str | None = None
    compiled: bool = False

    @property
    def name(self) -> str:
        """`eager`, `bf16`, `fp16`, `compiled`, `bf16+compiled` or `fp16+compiled`."""
        parts = [_SHORT[self.dtype]] if self.dtype else []
        return "+".join([*parts, "compiled"] if self.compiled else parts) or "eager"

    @contextlib.contextmanager
    def context(self, device: str) -> Iterator[None]:
        """What the step runs in on a device of this type. The caller's own autocast, if any, holds for eager."""
        if self.dtype is None:
            yield
            return
        with torch.autocast(device, getattr(torch, self.dtype)):
            yield


_SHORT = {"bfloat16": "bf16", "float16": "fp16"}
EAGER = Way()
WAYS = {way.name: way for way in (Way(d, c) for c in (False, True) for d in (None, "bfloat16", "float16"))}


@dataclass(frozen=True)
class Tolerance:
    """How far a way may be from eager: loss and gradients, both relative (see `distance`)."""

    loss: float
    gradient: float


#: Sizes of what rounding does to a sound model: float32 has 24 bits, float16 has 11, bfloat16 has 8.
TOLERANCES = {None: Tolerance(1e-4, 1e-2), "float16": Tolerance(1e-2, 5e-2), "bfloat16": Tolerance(3e-2, 1.5e-1)}


def precisions_for(device: torch.device) -> list[Way]:
    """The ways without compiling that are worth trying on this device, eager left out."""
    if device.type == "cpu":
        return [Way("bfloat16")]
    if device.type == "cuda":
        # Emulated bfloat16 (before Ampere) is always slower than float16 with a scaler.
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return [Way("bfloat16"), Way("float16")] if native else [Way("float16")]
    return [Way("bfloat16")] if torch.amp.is_autocast_available(device.type) else []


def distance(one: Sequence[torch.Tensor | None], other: Sequence[torch.Tensor | None]) -> float:
    """How far apart two lists of tensors are: |one - other| / |other|, 2-norms over all of them.

    Infinite where one of them is not finite, or has a tensor where the other has none.
    """
    apart = size = 0.0
    for a, b in zip(one, other, strict=True):
        if a is None and b is None:
            continue
        if a is None or b is None or a.shape != b.shape:
            return math.inf
        # In float64 only by tensor: a copy of all of them would double what a card needs.
        a64, b64 = a.detach().double(), b.detach().to(a.device).double()
        apart += float((a64 - b64).square().sum())
        size += float(b64.square().sum())
    if not math.isfinite(apart) or not math.isfinite(size):
        return math.inf
    if size == 0:
        return 0.0 if apart == 0 else math.inf
    return math.sqrt(apart / size)


def loss_of(result: Any) -> torch.Tensor | None:
    """The loss in what a step returns: a scalar tensor, or the one named or first in a dict, tuple or object."""
    if isinstance(result, torch.Tensor):
        return result if result.numel() == 1 else None
    if isinstance(result, dict):
        return loss_of(result.get("loss"))
    if isinstance(result, (tuple, list)):
        return loss_of(result[0]) if result else None
    return loss_of(getattr(result, "loss", None)) if hasattr(result, "loss") else None


def tensors_in(result: Any) -> list[torch.Tensor]:
    """Every floating tensor in what a step returns, in a fixed order."""
    leaves, _ = torch.utils._pytree.tree_flatten(result)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
