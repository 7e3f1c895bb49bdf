"""Wrong contents and downloads too many, 40 readers of uncached objects."""

from tests.bench.runtime import in_runtime


def run() -> tuple[float, str]:
    """See `tests/bench/runtime_cache_readers.py`."""
    return in_runtime("runtime_cache_readers")
