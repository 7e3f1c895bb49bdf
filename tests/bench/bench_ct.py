"""Projecting and reconstructing a slice by `gpuspawner_examples.ct`, over scikit-image's `radon` and `iradon`."""

from tests.bench.runtime import in_runtime


def run() -> tuple[float, str]:
    """See `tests/bench/ct.py`."""
    return in_runtime("ct", "tools/examples-env")
