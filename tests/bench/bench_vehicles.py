"""200 vehicles as tensors over the same 200 in highway-env: vehicle steps a second, with lidar and collisions."""

from __future__ import annotations

from tests.bench.runtime import in_runtime


def run() -> tuple[float, str]:
    """See `tests/bench/vehicles.py`."""
    return in_runtime("vehicles", "tools/examples-env")
