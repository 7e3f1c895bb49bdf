"""Waiting for a slow store with the cache, over without."""

from tests.bench.runtime import in_runtime


def run() -> tuple[float, str]:
    """See `tests/bench/runtime_cache_wait.py`."""
    return in_runtime("runtime_cache_wait")
