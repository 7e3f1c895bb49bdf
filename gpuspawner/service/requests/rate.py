"""How many requests a token may make: a bucket of its own for each, filled again evenly."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

_MOST = 10_000


class RateLimit:
    """`rate` requests a second, `burst` at once, for each token; a rate of 0 limits nobody. Thread-safe. Tokens are
    known by their hash alone."""

    def __init__(self, rate: float = 50.0, burst: int = 300, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst = rate, burst
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def wait(self, token: bytes) -> float:
        """Take one request of a token; seconds until it may make one where it may make none now, else 0."""
        if not self.rate:
            return 0.0
        name, now = hashlib.sha256(token).digest(), self._clock()
        with self._lock:
            left, at = self._buckets.pop(name, (float(self.burst), now))
            left = min(float(self.burst), left + (now - at) * self.rate)
            wait = 0.0 if left >= 1 else (1 - left) / self.rate
            self._buckets[name] = (left if wait else left - 1), now
            if len(self._buckets) > _MOST:
                self._buckets.popitem(last=False)
        return wait
