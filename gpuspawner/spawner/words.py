"""Shares, memory and models in words for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuspawner.share import GPUShare

GIB = 2**30


def memory_words(count: int | None) -> str:
    """Bytes in GiB for people: 21474836480 -> "20 GiB"; None -> "unknown memory"."""
    if count is None:
        return "unknown memory"
    return f"{count / GIB:.1f}".removesuffix(".0") + " GiB"


def size_words(share: GPUShare) -> str:
    """How large a share is: "1/4 of a card", "a whole card", "2 cards", "no card"."""
    if not share.cards:
        return "no card"
    if share.eighths < 8:
        return f"{share.amount} of a card"
    return "a whole card" if share.cards == 1 else f"{share.cards} cards"


def model_words(model: str) -> str:
    """A model's id for people: "h100-80gb" -> "H100 80 GB"."""
    return re.sub(r"(\d)(gb)\b", r"\1 GB", model.replace("-", " ")).upper().strip()


def profile_words(session: Mapping[str, Any]) -> str:
    """A session's line in the hub's admin page: "GPU 1/4 · H100 80 GB", "No GPU"."""
    if not session["cards"]:
        return "No GPU"
    simulated = " (simulated)" if session.get("simulated") else ""
    return f"GPU {session['share'].rpartition(':')[2]} · {model_words(session['model'])}{simulated}"


def place_words(place: dict[str, Any]) -> str:
    """Where somebody stands in the queue, why, and for how long still as far as that is known."""
    number = place.get("place")
    at = f"Number {number} in the queue. " if number else "In the queue. "
    changed = ""
    if place.get("changed_by"):
        why = str(place.get("changed_reason") or "").rstrip(".")
        changed = f" {place['changed_by']} has set its class or deadline: {why}."
    return f"{at}{place['reason']} {wait_words(place, place.get('waited_seconds') or 0)}{changed}"


def wait_words(expected: dict[str, Any], waited: float = 0) -> str:
    """A range of seconds as the service tells it, less what was waited, for people."""
    low, high = expected.get("expected_low_seconds"), expected.get("expected_high_seconds")
    if low is None or high is None or high < waited:
        return "For how long is not known."
    low, high = max(0, low - waited), high - waited
    if high < 90:
        return "Probably about a minute."
    if high - low < 120:
        return f"Probably about {_minutes(high)}."
    return f"Probably up to {_minutes(high)}." if low < 60 else f"Probably {_minutes(low)} to {_minutes(high)}."


def _minutes(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 120 else f"{seconds / 3600:.1f} hours"
