"""What the shim adds to an allocation and its release together."""

from __future__ import annotations

from tests.bench import shim


def run() -> tuple[float, str]:
    """Nanoseconds for each pair of cuMemAlloc and cuMemFree."""
    return shim.added("alloc"), "ns"
