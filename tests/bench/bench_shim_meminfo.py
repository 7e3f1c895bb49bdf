"""What the shim adds to a question for free memory."""

from __future__ import annotations

from tests.bench import shim


def run() -> tuple[float, str]:
    """Nanoseconds for each cuMemGetInfo."""
    return shim.added("info"), "ns"
