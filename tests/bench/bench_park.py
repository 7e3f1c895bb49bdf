"""Seconds to park a session of 1 GB and to bring it back, beside dill."""

from tests.bench.runtime import in_runtime


def run() -> tuple[float, str]:
    """See `tests/bench/runtime_park.py`."""
    return in_runtime("runtime_park")
