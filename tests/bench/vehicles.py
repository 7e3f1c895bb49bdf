"""Vehicle steps a second of `gpuspawner_examples.driving` over those of highway-env, on the processor with one thread.

200 vehicles from the same places on a road of four lanes, drivers by IDM and MOBIL, collisions looked for, and a lidar
of 16 rays on each vehicle, on both sides. By turns, in the same run; the median of the ratios.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from gpuspawner_examples.driving import StraightRoad, World
from gpuspawner_examples.driving.beside import HighwayTraffic

VEHICLES, ROUNDS, OURS, THEIRS = 200, 5, 50, 1


def _seconds(step: Callable[[], None], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - began) / times


def main() -> None:
    """Print both figures of each round, and the ratio last."""
    torch.set_num_threads(1)
    world = World(StraightRoad(length=2500), VEHICLES)
    theirs = HighwayTraffic(world)
    for _ in range(5):
        world.step()
    ratios = []
    for _ in range(ROUNDS):
        mine, other = _seconds(world.step, OURS), _seconds(theirs.step, THEIRS)
        print(f"{VEHICLES / mine:,.0f} vehicle steps a second as tensors, {VEHICLES / other:,.0f} in highway-env")
        ratios.append(other / mine)
    assert len(theirs.seen) == VEHICLES
    print(f"{statistics.median(ratios):.2f} x")


if __name__ == "__main__":
    main()
