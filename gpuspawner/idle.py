"""After how much idleness a session is warned, shrunk and culled. Pure values from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from gpuspawner.errors import InvalidInput

_MOST = 365 * 86400
_CHECK = "GPUSPAWNER_IDLE_CHECK_SECONDS"


@dataclass(frozen=True)
class IdleTimes:
    """Seconds without activity after which a session is warned, shrunk to an eighth, and culled; None: never.

    `check`: seconds between two reports of a server about itself, and between two looks of the culler.
    """

    warn: float | None = None
    shrink: float | None = None
    cull: float | None = None
    check: float = 60.0

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> IdleTimes:
        """From GPUSPAWNER_IDLE_{WARN,SHRINK,CULL,CHECK}_SECONDS; unset or 0 is never. Raises InvalidInput.

        Nobody is shrunk or culled without a warning: where none is set, it comes at half of the time to the first
        of both. Where only culling is set, the session is shrunk at three quarters of that time.
        """
        warn, shrink, cull = (_seconds(env, f"GPUSPAWNER_IDLE_{name}_SECONDS") for name in ("WARN", "SHRINK", "CULL"))
        if shrink is None and cull is not None and not env.get("GPUSPAWNER_IDLE_SHRINK_SECONDS"):
            shrink = cull * 3 / 4
        first = min((time for time in (shrink, cull) if time is not None), default=None)
        if warn is None and first is not None:
            warn = first / 2
        if warn is not None and first is not None and warn >= first:
            raise _invalid(
                "GPUSPAWNER_IDLE_WARN_SECONDS", f"{warn:g}", f"less than {first:g}, when it is shrunk or culled"
            )
        if shrink is not None and cull is not None and shrink > cull:
            raise _invalid("GPUSPAWNER_IDLE_SHRINK_SECONDS", f"{shrink:g}", f"at most {cull:g}, when it is culled")
        check = _seconds(env, _CHECK)
        return cls(warn, shrink, cull, cls.check if check is None else check)

    @property
    def on(self) -> bool:
        """Whether anything happens to an idle session."""
        return self.warn is not None


def _seconds(env: Mapping[str, str], name: str) -> float | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if name == _CHECK:
        allowed, fits = "seconds from 0.1 to 3600", 0.1 <= value <= 3600  # NaN is neither
    else:
        allowed, fits = f"0 (never), or seconds from 1 to {_MOST}", value == 0 or 1 <= value <= _MOST
    if not fits or not text.isascii():
        raise _invalid(name, text, allowed)
    return value or None


def _invalid(name: str, given: str, allowed: str) -> InvalidInput:
    return InvalidInput(
        f"{name}: {given[:20]!r} is not allowed. Allowed: {allowed}.", field=name, given=given, allowed=allowed
    )
