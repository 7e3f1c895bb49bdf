"""PyTorch itself behind the shim: it starts, looks for cards as often as it likes, and goes on without one.

It finds no simulated card, with or without the shim: kernels are not computed there, and its results would be wrong.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.limits import Cards, Outside

from gpuspawner.node.limits import abi

CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuspawner"
PYTHONS = [found.parent / "bin" / "python" for found in sorted(CACHES.glob("runtime-*/complete"))]
SOURCE = """
import torch
print([torch.cuda.is_available() for _ in range(3)], torch.cuda.device_count())
print(float((torch.ones(3) * 2).sum()))
"""


@pytest.mark.skipif(not PYTHONS, reason="PyTorch is not set up here (make test-runtime does that)")
def test_import_torch_neither_spins_nor_hangs(out: Outside, made: Cards, uuids: list[str]) -> None:
    out.limit(abi.CardLimit(uuids[0], 1, 4 << 30))

    def run(environment: dict[str, str]) -> str:
        command = [str(PYTHONS[-1]), "-c", SOURCE]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=True).stdout

    # it counts by NVML, which the simulation answers and the shim too
    assert run(made.environment()) == "[False, False, False] 2\n6.0\n"
    assert run(out.environment) == "[False, False, False] 1\n6.0\n"
