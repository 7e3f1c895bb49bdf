"""The image with simulators of quantum circuits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.container import Share, lab

_BELL = """
import math
from gpuspawner_runtime import quantum
bell = 'OPENQASM 3.0; include "stdgates.inc"; qubit[2] q; h q[0]; cx q[0], q[1];'
for simulator in quantum.simulators():
    done = quantum.run(bell, simulator=simulator)
    expected = [math.sqrt(0.5), 0, 0, math.sqrt(0.5)]
    assert all(abs(one - other) < 1e-12 for one, other in zip(done.state, expected, strict=True)), done.state
    print(simulator)
"""
_CARD = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).total)"


def test_both_simulators_agree_with_the_closed_form(
    image: Callable[[str], str], quarter: Share, tmp_path: Path
) -> None:
    with lab(image("quantum"), tmp_path / "container", quarter) as made:
        kernel = made.kernel()
        assert kernel(_CARD) == f"{quarter.limit_bytes}\n"
        assert kernel(_BELL, 300).split() == ["aer", "lightning"]
