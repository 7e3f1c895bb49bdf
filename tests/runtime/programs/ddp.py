"""One rank of a distributed training: ddp.py FOLDER RANK WORLD [--plain-sampler] [--rounds N]

Writes FOLDER/log-RANK as `train.py` does. At the end rank 0 adds a fingerprint of the weights.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from gpuspawner_runtime import RuntimeFault, run
from runtime.models import MODELS
from runtime.programs.train import Samples, fingerprint
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    asked.add_argument("rank", type=int)
    asked.add_argument("world", type=int)
    asked.add_argument("--meeting", required=True)
    asked.add_argument("--plain-sampler", action="store_true")
    asked.add_argument("--samples", type=int, default=96)
    given = asked.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)
    dist.init_process_group("gloo", init_method=f"file://{given.meeting}", rank=given.rank, world_size=given.world)
    task = MODELS["gpt"]()
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=3e-3)
    data = Samples("gpt", given.samples)
    sampler = None if given.plain_sampler else DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(task.model)
    log = (given.folder / f"log-{given.rank}").open("a", buffering=1)
    try:
        with run(
            "ddp", model=model, optimizer=optimizer, loader=loader, every=0.05, clip=1.0, store=given.folder / "saved"
        ) as r:
            log.write(json.dumps({"resumed": r.resumed, "step": r.steps}) + "\n")
            for numbers, x, y in r:
                loss = task.loss(model, (x, y))
                line = {"epoch": 0, "samples": numbers.tolist(), "loss": loss.item().hex(), "step": r.steps + 1}
                log.write(json.dumps(line) + "\n")
                r.step(loss)
    except RuntimeFault as fault:
        log.write(json.dumps({"refused": fault.code}) + "\n")
        print(fault)
        raise SystemExit(3) from fault
    log.write(json.dumps({"end": fingerprint(task.model, optimizer)}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
