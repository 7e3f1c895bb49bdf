"""`fast` against the same steps as written, on the five models of the runtime's tests: the worst must not be slower.

Each model gets the way that `fast` chooses for it here, compiling included. Then both are timed in turns, forward and
backward, so that a slow moment of the machine meets both. Where eager was kept the two are the same program, and
what is left is the noise of the machine and the cost of asking: they are counted as they come out.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from gpuspawner_runtime.fast import fast

from tests.runtime.models import MODELS

ROUNDS = 60
BATCH = {"resnet": 16, "bert": 8, "gpt": 8, "unet": 16, "lstm": 32}


def _one(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    task = MODELS[name]()
    batch = task.batch(BATCH[name], torch.Generator().manual_seed(1))

    def step(pair: Any) -> torch.Tensor:
        return task.loss(task.model, pair)

    quick = fast(step, quiet=True)

    def timed(call: Any) -> float:
        task.model.zero_grad(set_to_none=True)
        started = time.perf_counter()
        call(batch).backward()
        return time.perf_counter() - started

    for call in (step, quick) * 3:
        timed(call)
    eager, mine = [], []
    for number in range(ROUNDS):
        # in turns, and each of them first as often
        for call, times in ((step, eager), (quick, mine)) if number % 2 else ((quick, mine), (step, eager)):
            times.append(timed(call))
    return {
        "model": name,
        "eager_ms": 1000 * statistics.median(eager),
        "fast_ms": 1000 * statistics.median(mine),
        "speed": statistics.median(a / b for a, b in zip(eager, mine, strict=True)),
        "line": quick.line.removeprefix("fast: "),
    }


if __name__ == "__main__":
    rows = [_one(each) for each in BATCH]
    print(f"{'model':<8} {'eager ms':>9} {'fast ms':>9} {'speed':>7}  way")
    for row in rows:
        print(f"{row['model']:<8} {row['eager_ms']:>9.2f} {row['fast_ms']:>9.2f} {row['speed']:>7.3f}  {row['line']}")
    print(min(row["speed"] for row in rows), "x")
