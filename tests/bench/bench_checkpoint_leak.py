"""What 50 saves leave behind in the memory of the training and of its writer."""

from tests.bench.runtime import in_runtime


def run() -> tuple[float, str]:
    """See `tests/bench/runtime_checkpoint_leak.py`."""
    return in_runtime("runtime_checkpoint_leak")
