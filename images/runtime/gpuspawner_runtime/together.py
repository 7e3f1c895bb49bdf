"""What the processes of a distributed run know of each other. Without one, a process is alone with itself."""

from __future__ import annotations

from typing import TypeVar

import torch.distributed as dist

_Value = TypeVar("_Value")


def running() -> bool:
    """Whether more than one process takes part."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def rank() -> int:
    """This process's number; 0 for the one that speaks, and without a distributed run."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def agree(value: _Value) -> list[_Value]:
    """The values of all processes, by rank. Every process must ask at the same point."""
    if not running():
        return [value]
    everybody: list[_Value | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, value)
    return everybody  # type: ignore[return-value]
