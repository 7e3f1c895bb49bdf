"""What importing the runtime adds to the start of a Python that does not use PyTorch, in ms: the fastest of 21 starts
with it less the fastest of 21 without, by turns. The fastest are what other work on the machine disturbed least."""

from __future__ import annotations

import os
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
    pairs = [
        (took("import gpuspawner_runtime, sys; assert 'torch' not in sys.modules"), took("")) for _ in range(_ROUNDS)
    ]
    fastest = min(one for one, _ in pairs), min(other for _, other in pairs)
    print(f"the fastest of {_ROUNDS}: {fastest[0]:.1f} ms with the import, {fastest[1]:.1f} ms without")
    return fastest[0] - fastest[1], "ms"
