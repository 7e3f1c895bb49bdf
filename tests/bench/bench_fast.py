"""`fast` against the same steps as written, on the five models of the runtime's tests: the worst must not be slower."""

from tests.bench.runtime import in_runtime


def run() -> tuple[float, str]:
    """See `tests/bench/runtime_fast.py`."""
    return in_runtime("runtime_fast")
