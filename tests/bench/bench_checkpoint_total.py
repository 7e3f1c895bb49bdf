"""From the save of 400 MB to a durable checkpoint, over torch.save with fsync of the same."""

from tests.bench.runtime import in_runtime


def run() -> tuple[float, str]:
    """See `tests/bench/runtime_checkpoint_total.py`."""
    return in_runtime("runtime_checkpoint_total")
