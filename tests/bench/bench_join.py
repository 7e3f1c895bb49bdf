"""How long process 300 of a session takes to have a context and its first memory.

In front of the null driver, so that what it takes is the shim's; the first process, in the same run, is the baseline.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path

from gpuspawner.node.limits import abi
from tests.bench import shim

HERE = Path(__file__).parent
PROCESSES = 300
TURNS = 3


def _turn(folder: Path, program: Path, driver: Path) -> tuple[float, float]:
    """Milliseconds of the first process and of the last."""
    folder.mkdir()
    variables = shim.environment(folder, driver, abi.CardLimit(shim.UUID, 1, 1 << 40, 64 << 20))
    library = Path(variables["LD_LIBRARY_PATH"]) / "libcuda.so.1"
    running: list[subprocess.Popen[str]] = []
    taken = []
    try:
        for _ in range(PROCESSES):
            process = subprocess.Popen(
                [program, library], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            running.append(process)
            assert process.stdout is not None
            taken.append(int(process.stdout.readline()) / 1e6)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    return taken[0], taken[-1]


def run() -> tuple[float, str]:
    """Milliseconds of process 300: the median over the turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program, driver = folder / "join", shim.null_driver(folder)
        subprocess.run(["cc", "-O2", "-o", program, HERE / "join.c", "-ldl"], check=True)
        turns = [_turn(folder / str(turn), program, driver) for turn in range(TURNS)]
    first, last = (statistics.median(each) for each in zip(*turns, strict=True))
    print(f"a session with {PROCESSES} processes: the first took {first:.2f} ms to start, the last {last:.2f} ms")
    return last, "ms"
