"""A training as a user would write it, for tests that kill it and start it again.

    train.py MODEL LOG [--epochs N] [--workers N] [--every S] [--store PLACE] [--accumulate N] [--samples N] [--pause S]

Each step adds a line to LOG: epoch, step, the samples of the batch, the loss in hexadecimal. Whoever is killed and goes
on writes lines again from its checkpoint on. The last line is `end` and a hash of all weights, the optimizer and the
next random numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from pathlib import Path

import numpy
import torch
from gpuspawner_runtime import run
from runtime.models import MODELS
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    """Samples made from their number, with something drawn at random on the way, as augmentation does."""

    def __init__(self, name: str, count: int) -> None:
        self.batch, self.count = MODELS[name]().batch, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        x, y = self.batch(1, torch.Generator().manual_seed(number))
        if x.is_floating_point():
            x = x + 0.01 * torch.rand(()) + 0.01 * random.random() + 0.01 * float(numpy.random.rand())
        return number, x[0], y[0]


def fingerprint(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        for name, value in sorted(state.items()):
            digest.update(
                name.encode() + torch.as_tensor(value).contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            )
    digest.update(repr((random.random(), float(numpy.random.rand()), torch.rand(3).tolist())).encode())
    return digest.hexdigest()


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("model")
    asked.add_argument("log")
    asked.add_argument("--epochs", type=int, default=2)
    asked.add_argument("--workers", type=int, default=0)
    asked.add_argument("--every", type=float)
    asked.add_argument("--store")
    asked.add_argument("--accumulate", type=int, default=1)
    asked.add_argument("--samples", type=int, default=96)
    asked.add_argument("--pause", type=float, default=0.0)
    asked.add_argument("--compile", action="store_true")
    given = asked.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)
    task = MODELS[given.model]()
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=10_000)
    loader = DataLoader(Samples(given.model, given.samples), batch_size=4, shuffle=True, num_workers=given.workers)
    model = torch.compile(task.model, backend="eager") if given.compile else task.model
    with (
        Path(given.log).open("a", buffering=1) as log,
        run(
            "test",
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            loader=loader,
            epochs=given.epochs,
            every=given.every,
            store=given.store,
            accumulate=given.accumulate,
            clip=1.0,
        ) as r,
    ):
        lost = r.report().lost_steps
        log.write(json.dumps({"resumed": r.resumed, "step": r.steps, "lost": lost}) + "\n")
        for numbers, x, y in r:
            epoch = r.epoch
            loss = task.loss(model, (x, y))
            log.write(
                json.dumps(
                    {"epoch": epoch, "samples": numbers.tolist(), "loss": loss.item().hex(), "step": r.steps + 1}
                )
                + "\n"
            )
            r.step(loss)
            time.sleep(given.pause)
    with Path(given.log).open("a") as log:
        log.write(json.dumps({"end": fingerprint(task.model, optimizer)}) + "\n")


if __name__ == "__main__":
    main()
