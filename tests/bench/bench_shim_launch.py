"""What the shim adds to a kernel launch.

Launches are not held to the share yet: today they go straight to the driver, and this measures that.
"""

from __future__ import annotations

from tests.bench import shim


def run() -> tuple[float, str]:
    """Nanoseconds for each launch; what a graph launch costs, which the shim does look at, is printed."""
    shim.added("graph")
    return shim.added("launch"), "ns"
