"""Reading what is cached, over a plain read of the file."""

from tests.bench.runtime import in_runtime


def run() -> tuple[float, str]:
    """See `tests/bench/runtime_cache_warm.py`."""
    return in_runtime("runtime_cache_warm")
