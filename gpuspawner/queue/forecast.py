"""How far what is expected of a wait is to be believed: by what became of such expectations before.

A forecast says what happens if nobody more urgent comes and all run as long as they said. How wrong that is, is not
known beforehand but afterwards: so each wait that is over leaves the ratio of what it was to what was expected, and a
new forecast becomes the range that the middle 80 % of the latest ratios span. Split conformal prediction is the same
idea; here the ratios are of one house, and follow it when it changes.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

#: Waits that are looked back at, and how many there must be before anything is said.
WINDOW = 200
LEAST = 20
#: The part of all waits that is to be within what was said.
PART = 0.8
#: A wait that may be longer than this is not told: so wide a range says nothing.
LONGEST = 86400.0
#: A minute more or less says nothing about a wait of seconds.
_SLACK = 60.0


@dataclass(frozen=True, slots=True)
class Expected:
    """A wait in seconds, from `low` to `high`."""

    low: float
    high: float

    def holds(self, seconds: float) -> bool:
        """Whether it was right."""
        return self.low <= seconds <= self.high


class Record:
    """Forecasts and what became of them, by class; and how long sessions run."""

    def __init__(self) -> None:
        self._ratios: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._runs: deque[float] = deque(maxlen=WINDOW)

    def waited(self, kind: str, forecast: float, seconds: float) -> None:
        """A wait is over, of which `forecast` seconds were expected."""
        self._ratios[kind].append(_ratio(forecast, seconds))

    def ran(self, seconds: float) -> None:
        """A session is over that ran so long."""
        self._runs.append(seconds)

    def usual(self, otherwise: float) -> float:
        """How long sessions run of which nothing is known (the median); `otherwise` while too few have ended."""
        return sorted(self._runs)[len(self._runs) // 2] if len(self._runs) >= LEAST else otherwise

    def knows(self, kind: str) -> bool:
        """Whether enough waits of a class are over to say anything."""
        return len(self._ratios.get(kind, ())) >= LEAST

    def expected(self, kind: str, forecast: float | None, going: Iterable[tuple[float, float]] = ()) -> Expected | None:
        """The range for a new forecast; None where it is not known or may be longer than LONGEST. `going`: forecast and
        seconds until now of those of that class who wait still. Who has waited for longer than most did counts, or the
        longest waits would be missing from what is known."""
        ratios = self._ratios.get(kind)
        if forecast is None or ratios is None or len(ratios) < LEAST:
            return None
        known = sorted(ratios)
        usual = _quantile(known, (1 + PART) / 2)
        known = sorted([*known, *(late for each in going if (late := _ratio(*each)) > usual)])
        low, high = (_quantile(known, part) for part in ((1 - PART) / 2, (1 + PART) / 2))
        most = (forecast + _SLACK) * high - _SLACK
        if most > LONGEST:
            return None
        return Expected(max(0.0, (forecast + _SLACK) * low - _SLACK), max(0.0, most))


def _ratio(forecast: float, seconds: float) -> float:
    return (seconds + _SLACK) / (forecast + _SLACK)


def _quantile(ordered: list[float], part: float) -> float:
    """The smallest that `part` of one more than there are do not exceed."""
    return ordered[min(len(ordered), max(1, math.ceil(part * (len(ordered) + 1)))) - 1]
