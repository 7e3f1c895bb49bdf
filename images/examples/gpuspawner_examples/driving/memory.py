"""How much memory a world takes, so that a share of a card says how many vehicles fit."""

from __future__ import annotations

import torch

from gpuspawner_examples.driving.boxes import SLICE

#: Numbers for each vehicle: its state, and what a step holds beside it (by lane, and by ray).
_STATE, _STEP, _LANE = 8, 60, 40
#: Bytes for each pair of places that a step holds at its worst: numbers, and the three indices of a pair that is near.
_PAIR_NUMBERS, _PAIR_INDICES = 6, 3 * 8
#: Numbers for each ray of a pair that a slice holds.
_SLICE_NUMBERS = 24


def bytes_for_each(places: int, lanes: int, rays: int, dtype: torch.dtype = torch.float32) -> int:
    """Bytes that each place for a vehicle takes at most while a step is computed.

    It is an upper bound, reached where all vehicles of a road are within sight of each other; `tests/examples` compares
    it with what a step allocates.
    """
    number = int(dtype.itemsize)
    alone = (_STATE + _STEP + _LANE * lanes + 2 * rays) * number
    return alone + places * (_PAIR_NUMBERS * number + _PAIR_INDICES)


def bytes_beside(dtype: torch.dtype = torch.float32) -> int:
    """Bytes that a step takes however few vehicles there are: what looks at pairs slice by slice."""
    return SLICE * _SLICE_NUMBERS * int(dtype.itemsize)


def fitting(memory: int, places: int, lanes: int, rays: int, dtype: torch.dtype = torch.float32) -> int:
    """How many vehicles fit into `memory` bytes, in whole roads of `places`; 0 where not even one road does."""
    roads = (memory - bytes_beside(dtype)) // (bytes_for_each(places, lanes, rays, dtype) * places)
    return max(0, roads) * places
