"""Who looks at the telemetry, and for how long still. Nobody looking means that nothing is sampled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

#: Leases kept at once; a page that asks under ever new names must not fill the memory.
MOST_VIEWERS = 256


@dataclass(frozen=True)
class _Lease:
    until: float
    detail: bool


class Watchers:
    """Leases of viewers. A lease ends by itself, so a browser that vanished costs nothing after it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._leases: dict[str, _Lease] = {}

    def hold(self, viewer: str, seconds: float, *, detail: bool = False) -> None:
        """Look for `seconds` from now; 0 ends the viewer's lease. `detail`: processes and checkpoints too."""
        self._leases.pop(viewer, None)
        if seconds <= 0:
            return
        if len(self._leases) >= MOST_VIEWERS:
            self._leases.pop(min(self._leases, key=lambda name: self._leases[name].until))
        self._leases[viewer] = _Lease(self._clock() + seconds, detail)

    @property
    def looking(self) -> bool:
        """Whether anybody looks now."""
        return bool(self._now())

    @property
    def detail(self) -> bool:
        """Whether anybody looks at processes and checkpoints now."""
        return any(lease.detail for lease in self._now().values())

    def _now(self) -> dict[str, _Lease]:
        now = self._clock()
        self._leases = {name: lease for name, lease in self._leases.items() if lease.until > now}
        return self._leases
