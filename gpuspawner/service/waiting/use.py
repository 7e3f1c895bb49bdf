"""Who has used how much of late, from the ledger."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import Engine

from gpuspawner.queue import Rules
from gpuspawner.service.ledger.sums import HOUR, totals

#: Past this many half lives nothing is left that anybody would notice.
_HALF_LIVES = 5


def recent_use(engine: Engine, now: float, rules: Rules) -> dict[str, float]:
    """Eighth-seconds by user, each counted by half for every half life since. Read in pieces of a half life, each
    counted as if it had been used in the middle."""
    found: defaultdict[str, float] = defaultdict(float)
    half_life = int(rules.half_life_seconds)
    end = int(now)
    for piece in range(_HALF_LIVES):
        begin = (int(now) - (piece + 1) * half_life) // HOUR * HOUR  # whole hours are summed up already
        weight = 0.5 ** (piece + 0.5)
        for total in totals(engine, begin, end):
            if total.kind == "session":
                found[total.user] += total.eighth_seconds * weight
        end = begin
    return dict(found)
