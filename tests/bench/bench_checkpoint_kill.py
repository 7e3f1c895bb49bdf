"""Trainings killed at random moments: how many leave no checkpoint that loads and is exact."""

from tests.bench.runtime import in_runtime


def run() -> tuple[float, str]:
    """See `tests/bench/runtime_checkpoint_kill.py`."""
    return in_runtime("runtime_checkpoint_kill")
