"""Whether a release and an allocation cost more when 100,000 live already than when 10 do.

Small pieces, as the driver cuts them from one block. Programs with few and with many take turns.
"""

from __future__ import annotations

import statistics

from tests.bench import shim

TURNS = 5


def nanoseconds(live: int) -> float:
    """Of a release and an allocation through the shim."""
    return statistics.median(through for _, through in shim.rounds(str(live)))


def run() -> tuple[float, str]:
    """The cost at 100,000 as a multiple of that at 10, where the oldest goes each time."""
    few, many, any_of_few, any_of_many = zip(
        *([nanoseconds(live) for live in (10, 100_000, -10, -100_000)] for _ in range(TURNS)), strict=True
    )
    ratios = sorted(b / a for a, b in zip(few, many, strict=True))
    scattered = statistics.median(b / a for a, b in zip(any_of_few, any_of_many, strict=True))
    print(
        f"release of the oldest and allocation through the shim: {statistics.median(few):.0f} ns with 10 live, "
        f"{statistics.median(many):.0f} ns with 100,000: {statistics.median(ratios):.2f} times, "
        f"over {TURNS} turns from {ratios[0]:.2f} to {ratios[-1]:.2f}"
    )
    print(
        f"release of any: {statistics.median(any_of_few):.0f} ns and {statistics.median(any_of_many):.0f} ns, "
        f"{scattered:.2f} times"
    )
    return statistics.median(ratios), "x"
