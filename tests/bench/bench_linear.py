"""How far the throughput of one program is off a straight line from an eighth of a card to all of it.

A simulated card in timed mode. The line is through nothing and what the program has with the whole card, same run.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support.compute import ground

SECONDS = 5
SHARES = (8, 4, 2, 1)


def run() -> tuple[float, str]:
    """Percent off the line in the worst share."""
    found: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as name, ground(Path(name)) as card:
        for eighths in SHARES:
            session = card.group()
            session.limit((eighths, 0))
            session.load(1000)
            card.shares([session])  # the first kernels are owed for
            found[eighths] = card.shares([session], SECONDS)[0]
            session.end()
    off = {eighths: 100 * abs(found[eighths] / (found[8] * eighths / 8) - 1) for eighths in SHARES}
    print(
        "kernels of 1 ms on a simulated card: "
        + ", ".join(f"{eighths}/8 had {found[eighths]:.2f} % ({off[eighths]:.2f} % off)" for eighths in SHARES)
    )
    return max(off.values()), "%"
