"""Memory that 50 saves add to the training and to its writer, in MB, after ten that are not counted."""

from __future__ import annotations

from pathlib import Path

import torch
from gpuspawner_runtime import autocheckpoint
from torch import nn

from tests.bench.runtime_checkpoints import place

_SAVES = 50


def private(pid: int | str) -> int:
    """Bytes of a process that are its own; what it shares with its writer is there once and counted apart."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(value.split()[0]) * 1024 for name, _, value in (row.partition(":") for row in rows)}
    return sizes["Private_Clean"] + sizes["Private_Dirty"] + sizes["Shared_Dirty"]


def main() -> None:
    """Prints what both have grown by."""
    with place():
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(16)))
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.randn(8, 512)
        with autocheckpoint("bench", model=model, optimizer=optimizer, every=600) as saver:
            before = 0
            for number in range(10 + _SAVES):
                if number == 10:
                    before = private("self") + private(saver.writer_pid)
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                saver.step()
                saver.save(wait=True)
            grown = (private("self") + private(saver.writer_pid) - before) / 1e6
        print(f"{_SAVES} saves of {sum(p.nbytes for p in model.parameters()) * 3 / 1e6:.0f} MB")
    print(f"{max(grown, 0):.2f} MB")


if __name__ == "__main__":
    main()
