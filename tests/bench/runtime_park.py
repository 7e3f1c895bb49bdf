"""Seconds to park a session of 1 GB durably and to bring it back, beside dill, written to disk as durably."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import dill
import numpy as np
import torch
from gpuspawner_runtime.park import park, unpark


def session() -> dict[str, Any]:
    """Weights, data, tables of Python objects, a function."""
    rng = np.random.default_rng(1)
    data = rng.standard_normal(50_000_000)
    return {
        "model": {f"layer{i}": torch.randn(1000, 1000) for i in range(100)},
        "data": data,
        "part": data[1000:2000],
        "table": [{"id": i, "name": f"row {i}", "value": i / 3} for i in range(100_000)],
        "twice": lambda x: 2 * x,
    }


def by_dill(namespace: dict[str, Any], path: Path) -> float:
    """Seconds there and back."""
    began = time.perf_counter()
    with path.open("wb") as file:
        dill.dump(namespace, file)
        file.flush()
        os.fsync(file.fileno())
    with path.open("rb") as file:
        dill.load(file)
    return time.perf_counter() - began


def main() -> None:
    """Prints the better of two."""
    namespace = session()
    ours, theirs, there = [], [], 0.0
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for _ in range(2):
            began = time.perf_counter()
            report = park(Path(folder) / "x.parked", namespace=namespace)
            there = time.perf_counter() - began
            assert not report.lost, report.lost
            found: dict[str, Any] = {}
            unpark(Path(folder) / "x.parked", namespace=found)
            ours.append(time.perf_counter() - began)
            assert np.array_equal(found["data"], namespace["data"])
            assert np.shares_memory(found["part"], found["data"])
            del found
            theirs.append(by_dill(namespace, Path(folder) / "x.dill"))
    ours.sort()
    theirs.sort()
    print(f"{report.bytes / 1e9:.2f} GB there and back: {ours[0]:.2f} s ({there:.2f} s there), dill {theirs[0]:.2f} s")
    print(f"{ours[0]:.3f} s")


if __name__ == "__main__":
    main()
