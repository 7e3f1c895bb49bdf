"""What the shim adds to a kernel launch, with a whole card and with a part of one, where launches are paid for."""

from __future__ import annotations

from tests.bench import shim


def run() -> tuple[float, str]:
    """Nanoseconds for each launch, the greater of the two; what is added to a graph launch is printed."""
    for eighths in (8, 1):
        shim.added("graph", eighths)
    return max(shim.added("launch", eighths) for eighths in (8, 1)), "ns"
