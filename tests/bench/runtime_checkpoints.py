"""What the benchmarks of checkpoints share: a training with 400 MB of state, and the peers."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

WIDTH, LAYERS = 2048, 8  # 33.6 million parameters; with AdamW's two moments 403 MB


class Training:
    """A model of 400 MB of state and its steps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.batch = torch.randn(16, WIDTH)
        self.step()

    def step(self) -> None:
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    @property
    def bytes(self) -> int:
        moments = [v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        return sum(tensor.nbytes for tensor in [*self.model.parameters(), *moments])


def seconds(action: Callable[[], Any]) -> float:
    """What `action` takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def save_and_sync(state: Any, path: Path) -> None:
    """The baseline: torch.save, and fsync of the file and of its folder."""
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A folder on a disk, also for the state files."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("GPUSPAWNER_BENCH_FOLDER")) as folder:
        before = os.environ.get("HOME")
        os.environ["HOME"] = folder
        try:
            yield Path(folder)
        finally:
            if before is not None:
                os.environ["HOME"] = before
