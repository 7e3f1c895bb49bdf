"""The service's clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_ms() -> int:
    """Milliseconds since the epoch, UTC."""
    return time.time_ns() // 1_000_000


def moment(milliseconds: int | None = None) -> datetime:
    """A time in milliseconds since the epoch, or now, as a datetime in UTC."""
    return datetime.fromtimestamp((now_ms() if milliseconds is None else milliseconds) / 1000, UTC)
