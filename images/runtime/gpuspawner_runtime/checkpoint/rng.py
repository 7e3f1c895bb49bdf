"""The states of all random number generators: Python's, NumPy's, PyTorch's on the CPU and on every card in use."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """The states as a tree that can be saved; about 20 µs. NumPy's and the cards' only where those are in use."""
    found: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        import numpy

        state: Any = numpy.random.get_state()
        kind, keys, place, has_gauss, gauss = state
        found["numpy"] = (str(kind), torch.from_numpy(keys.astype("int64")), int(place), int(has_gauss), float(gauss))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = [torch.cuda.get_rng_state(card) for card in range(torch.cuda.device_count())]
    return found


def restore(states: dict[str, Any]) -> None:
    """Put back what `capture` gave. States of cards that are not there are left out."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(states["torch"].cpu())
    if (state := states.get("numpy")) is not None:
        import numpy

        kind, keys, place, has_gauss, cached = state
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), place, has_gauss, cached))
    if torch.cuda.is_available():
        for card, kept in enumerate(states.get("cuda", [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(kept.cpu(), card)


def shift(rank: int) -> None:
    """Other numbers for a rank that had no states of its own: seeded from those that are set, and the rank."""
    seed = int(torch.randint(0, 2**62, ()).item()) + rank
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(seed % 2**32)
