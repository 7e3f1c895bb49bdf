"""What importing the runtime adds to the start of a Python that does not use PyTorch: the median of 21 pairs, in ms."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

_ROUNDS = 21


def run() -> tuple[float, str]:
    """Alternates `import gpuspawner_runtime` with an empty program in the same run."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "images/runtime")}

    def took(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], env=env, check=True)
        return 1000 * (time.perf_counter() - began)

    took("import gpuspawner_runtime")  # its bytecode is made
    added = [
        took("import gpuspawner_runtime, sys; assert 'torch' not in sys.modules") - took("") for _ in range(_ROUNDS)
    ]
    print(f"median of {_ROUNDS}; from {min(added):.1f} to {max(added):.1f} ms")
    return statistics.median(added), "ms"
