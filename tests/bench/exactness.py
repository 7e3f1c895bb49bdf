"""Many processes of one session that take, give back, end and are killed, and what the driver says of it all."""

from __future__ import annotations

import random
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Outcome:
    """Bytes of the card in use at most, as any process saw by the driver's own figure; and how the processes ended."""

    peak: int
    killed: int
    ended: int


def crowd(folder: Path, driver: Path, environment: dict[str, str], count: int, seed: int = 1) -> Outcome:
    """Start `count` processes; kill every third at a random moment; wait for all. Raises if one fails by itself."""
    program, peaks = folder / "exactness", folder / "peaks"
    subprocess.run(["cc", "-O2", "-o", program, HERE / "exactness.c", "-ldl"], check=True)
    peaks.write_bytes(bytes(8 * count))
    shim = Path(environment["LD_LIBRARY_PATH"]) / "libcuda.so.1"
    chance = random.Random(seed)
    running = [
        subprocess.Popen([program, driver, shim, str(seed * 1000 + i), peaks, str(i)], env=environment)
        for i in range(count)
    ]
    doomed = chance.sample(running, count // 3)
    try:
        for process in doomed:
            sleep(chance.uniform(0, 0.02))
            process.kill()
        deadline = monotonic() + 120
        codes = [process.wait(max(1, deadline - monotonic())) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    wrong = [code for code in codes if code not in (0, -9)]
    if wrong:
        raise RuntimeError(f"exactness ended with {wrong[0]}")
    seen = struct.unpack(f"={count}Q", peaks.read_bytes())
    return Outcome(max(seen), codes.count(-9), codes.count(0))
