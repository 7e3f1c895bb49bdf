"""`distributed()`: the process group that fits the machine, or nothing to do for one process."""

from __future__ import annotations

import atexit
import datetime
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuspawner_runtime.errors import RuntimeFault
from gpuspawner_runtime.fabric import read_fabric
from gpuspawner_runtime.transport import Plan, plan

_world: World | None = None


@dataclass(frozen=True)
class World:
    """The processes that train together. `device`: of this process, such as `cuda:0`; `backend`: None for one process;
    `plan`: what was chosen and why, None for one process."""

    rank: int
    size: int
    local_rank: int
    device: str
    backend: str | None
    plan: Plan | None

    def __str__(self) -> str:
        if self.backend is None:
            return f"one process on {self.device}"
        over = f" over {self.plan.transport}" if self.plan and "nccl" in self.backend else ""
        return f"rank {self.rank} of {self.size} on {self.device}, {self.backend}{over}"

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.backend is not None:
            import torch.distributed as dist

            dist.barrier()

    def close(self) -> None:
        """Leave the group. Called at the end of the process too."""
        global _world
        _world = None
        dist = sys.modules.get("torch.distributed")
        if self.backend is not None and dist is not None and dist.is_initialized():
            dist.destroy_process_group()


def distributed(
    backend: str | None = None, *, timeout: float = 600.0, strict: bool = False, root: str | Path = "/"
) -> World:
    """Join the processes that `torchrun` (or another launcher that sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)
    started.

    In a notebook or a plain script, with none of those set, there is one process and nothing is done. Calling it again
    gives the same world. `backend`: None chooses; `timeout`: seconds for a collective; `strict`: raise where RDMA is
    there and cannot be used, instead of going on by sockets with a warning; `root`: where /sys and /proc lie.

    Raises RuntimeFault for a launcher's variables that make no sense, and with `strict`.
    """
    global _world
    if _world is not None:
        return _world
    import torch
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        device = _device(torch, _variable("LOCAL_RANK", default=dist.get_rank()), set_it=False)
        rank = dist.get_rank()
        local = _variable("LOCAL_RANK", default=rank)
        _world = World(rank, dist.get_world_size(), local, device, dist.get_backend(), None)
        return _world
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return World(0, 1, 0, _device(torch, 0, set_it=False), None, None)
    rank, size = _variable("RANK"), _variable("WORLD_SIZE")
    local = _variable("LOCAL_RANK", default=rank)
    here = _variable("LOCAL_WORLD_SIZE", default=size)
    if rank >= size:
        text = f"RANK is {rank} and WORLD_SIZE {size}."
        raise RuntimeFault(text, field="RANK", given=rank, allowed=f"0 to {size - 1}")
    found = plan(read_fabric(root), os.environ)
    chosen = backend or _backend(torch, dist, here)
    if "nccl" in chosen:
        _complain(found, rank, strict)
    for name, value in found.settings.items():
        # Where all processes are on this machine, gloo meets by MASTER_ADDR, which may be the loopback.
        if "nccl" in chosen if name.startswith("NCCL_") else here != size:
            os.environ.setdefault(name, value)
    device = _device(torch, local, set_it="nccl" in chosen)
    dist.init_process_group(chosen, timeout=datetime.timedelta(seconds=timeout))
    _world = World(rank, size, local, device, chosen, found)
    atexit.register(_world.close)
    return _world


def _backend(torch: Any, dist: Any, here: int) -> str:
    """NCCL where each process has a card of its own: it refuses two processes on one card."""
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if cards >= here and dist.is_nccl_available():
        return "cpu:gloo,cuda:nccl"
    if cards and not dist.is_nccl_available():
        _say("PyTorch is built without NCCL: gloo is used, through the host's memory.")
    elif cards:
        _say(f"{here} processes share {cards} card(s), which NCCL refuses: gloo is used, through the host's memory.")
    return "gloo"


def _device(torch: Any, local: int, *, set_it: bool) -> str:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return "cpu"
    if set_it:
        torch.cuda.set_device(local % count)
    return f"cuda:{local % count}"


def _complain(found: Plan, rank: int, strict: bool) -> None:
    fatal = [problem for problem in found.problems if problem.fatal]
    if fatal and strict:
        text = " ".join(f"{problem.what} {problem.mend}" for problem in fatal)
        raise RuntimeFault(text, code="no-rdma")
    if fatal and rank == 0:
        for problem in fatal:
            _say(f"{problem.what} {problem.mend}")
        _say("Until then it goes on by sockets. python -m gpuspawner_runtime.preflight says more.")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _variable(name: str, default: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdigit():
        raise RuntimeFault(
            f"{name} is {text!r}: a launcher such as torchrun sets it to a whole number.",
            field=name,
            given=text,
            allowed="a whole number",
        )
    return int(text)
