"""What a checkpoint of 400 MB stops the training for, beside torch.save with fsync and DCP's async_save."""

from tests.bench.runtime import in_runtime


def run() -> tuple[float, str]:
    """See `tests/bench/runtime_checkpoint_stall.py`."""
    return in_runtime("runtime_checkpoint_stall")
