"""By how many bytes 64 processes of one session get over its limit that take memory, give it back, end and are killed.

Simulated cards; the figure is the driver's own, asked by every process after each grant.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpuspawner.node.limits import abi, measure
from tests.bench import exactness
from tests.support.limits import CUDA, cards, outside, wait_until

PROCESSES = 64
ROUNDS = 5


def run() -> tuple[float, str]:
    """Bytes over the limit at most. Fails where anything is left in use or counted after all have ended."""
    over = 0
    with tempfile.TemporaryDirectory() as name, cards(Path(name) / "cards", "1*h100-80gb") as made:
        [context] = measure.context_bytes(made.driver()).values()
        limit = PROCESSES * context + (512 << 20)
        for round_ in range(1, ROUNDS + 1):
            with outside(Path(name) / str(round_), made) as out:
                out.limit(abi.CardLimit(made.uuids()[0], 1, limit, context))
                found = exactness.crowd(out.folder, made.driver().cuda, out.environment, PROCESSES, round_)
                wait_until(lambda: made.used() == 0, "the card's being empty")
                left = out.server(CUDA).run("info()[0]")
                [row] = out.usage()
                assert (left, row.bytes) == (limit - context, context), (left, out.usage())
            print(
                f"round {round_}: {found.ended} ended and {found.killed} killed; at most {found.peak} bytes in use "
                f"of {limit} ({found.peak - limit:+d}); none left in use or counted"
            )
            over = max(over, found.peak - limit)
    return float(max(0, over)), "bytes"
