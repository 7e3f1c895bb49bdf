"""A circuit by `gpuspawner_runtime.quantum` against each simulator called directly: the worse of the two ratios."""

from __future__ import annotations

from tests.bench.runtime import in_runtime


def run() -> tuple[float, str]:
    """See `tests/bench/quantum.py`."""
    return in_runtime("quantum", "tools/quantum-env")
