"""From the request for the hub's page about cards to its first card on the screen, with 1,000 nodes and 8,000 sessions.

Printed beside it: until all cards and sessions have come.
"""

from __future__ import annotations

import statistics

from tests.bench.page import CARDS, NODES, SESSIONS, WATCH, load, open_page

ROUNDS = 7


def run() -> tuple[float, str]:
    """The median over ROUNDS, in milliseconds."""
    with open_page() as (page, url):
        page.add_init_script(WATCH)
        taken = [load(page, url) for _ in range(ROUNDS + 1)][1:]  # the first fills caches
    first, whole = (statistics.median(each[what] for each in taken) for what in ("first", "all"))
    print(
        f"{NODES} nodes, {NODES * CARDS} cards, {SESSIONS} sessions, median of {ROUNDS}: "
        f"first card on the screen after {first:.0f} ms (slowest {max(each['first'] for each in taken):.0f} ms), "
        f"all there after {whole:.0f} ms"
    )
    return first, "ms"
