"""The processes of a distributed training, seen by one of them. Without `torch.distributed` there is one."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

#: Seconds between two agreements, about; what a notice waits for at most, beside a step.
_EVERY = 0.5


class Ranks:
    """World size and rank, and agreement of all ranks about what to do at a step."""

    def __init__(self) -> None:
        self.world, self.rank, self._group = 1, 0, None
        if dist.is_available() and dist.is_initialized():
            self.world, self.rank = dist.get_world_size(), dist.get_rank()
            # a group of its own on the CPU: no card has to wait for what is agreed here
            self._group = dist.new_group(backend="gloo") if self.world > 1 else None
        self._every = 1
        self._count = 0

    def agree(self, wish: int, step_seconds: float) -> int | None:
        """The largest `wish` of all ranks, at every n-th call (at all ranks alike); None in between. n is such that
        it is asked about twice a second, by the slowest rank's `step_seconds`."""
        if self._group is None:
            return wish
        self._count += 1
        if self._count < self._every:
            return None
        self._count = 0
        asked = torch.tensor([float(wish), step_seconds], dtype=torch.float64)
        dist.all_reduce(asked, dist.ReduceOp.MAX, group=self._group)
        self._every = max(1, min(1000, math.ceil(_EVERY / max(float(asked[1]), 1e-6))))
        return int(asked[0])

    def from_first(self, value: Any) -> Any:
        """What rank 0 says, at all ranks."""
        if self._group is None:
            return value
        said = [value]
        dist.broadcast_object_list(said, src=0, group=self._group)
        return said[0]

    def all_true(self, value: bool) -> bool:
        """Whether it is true at all ranks."""
        if self._group is None:
            return value
        asked = torch.tensor([int(value)])
        dist.all_reduce(asked, dist.ReduceOp.MIN, group=self._group)
        return bool(asked[0])
