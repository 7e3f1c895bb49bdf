"""When the next checkpoint is due, and what may be asked for it."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any

from gpuspawner_runtime.errors import RuntimeFault

#: Never longer between two checkpoints, in seconds.
LONGEST = 600.0
SHORTEST = 2.0
#: What is believed of failures before any was seen: one a day.
PRIOR_SECONDS = 86_400.0


def mean_time_between_failures(trained: float, failures: int) -> float:
    """Seconds, from the seconds `trained` over the whole run and how often it was killed: the mean of a Gamma
    posterior whose prior is one failure in `PRIOR_SECONDS`."""
    return (trained + PRIOR_SECONDS) / (failures + 1)


def interval(cost: float, duration: float, between_failures: float, longest: float = LONGEST) -> float:
    """Seconds between checkpoints: sqrt(2 · cost · between_failures), the first-order optimum of J. W. Young, "A first
    order approximation to the optimum checkpoint interval", CACM 17(9), 1974; Daly's higher orders (FGCS 22, 2006) only
    matter where the cost is near the time between failures.

    `cost`: seconds that one checkpoint takes from the training. `duration`: seconds until it is durable, in the
    background; the next one is not due before twice that. Never above `longest`.
    """
    best = math.sqrt(2.0 * max(cost, 0.0) * max(between_failures, 1.0))
    return min(max(best, 2.0 * duration, 20.0 * cost, SHORTEST), longest)


class Pace:
    """What a run's latest checkpoints have cost, and the pause between two that follows from it.

    `every`: seconds that its user wants between two, None for what is best.
    """

    def __init__(self, every: float | None) -> None:
        self.every = every
        self._costs: deque[float] = deque(maxlen=5)
        self._durations: deque[float] = deque(maxlen=5)
        self._stalled = 0.0

    def stalled(self, seconds: float) -> None:
        """The training has stood still for a checkpoint."""
        self._stalled += seconds

    def took(self, seconds: float) -> None:
        """A checkpoint became durable so long after it was begun."""
        self._durations.append(seconds)

    def pause(self, trained: float, failures: int) -> float:
        """Seconds from the checkpoint that is now under way to the next; see `mean_time_between_failures`."""
        self._costs.append(self._stalled)
        self._stalled = 0.0
        if self.every is not None:
            return self.every
        duration = statistics.median(self._durations) if self._durations else 0.0
        return interval(statistics.median(self._costs), duration, mean_time_between_failures(trained, failures))


def checked(keep: Any, every: Any) -> tuple[int, float | None]:
    """`keep` and `every` as a person gave them. Raises RuntimeFault with the field."""
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise RuntimeFault(f"keep: {keep!r} is not a whole number from 1 on.", field="keep", given=keep, allowed=">= 1")
    if every is None:
        return keep, None
    if isinstance(every, bool) or not isinstance(every, int | float) or not 0 < every <= LONGEST:
        raise RuntimeFault(
            f"every: {every!r} is not a number of seconds up to {LONGEST:.0f}.",
            field="every",
            given=every,
            allowed=f"above 0, up to {LONGEST:.0f}",
        )
    return keep, float(every)
