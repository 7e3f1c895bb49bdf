"""Words and figures that the server extension and the magic both need. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

#: What a running session may be resized to; the service has the last word.
SHARES = ("1/8", "1/4", "1/2", "1")
ALLOWED = "1/8, 1/4, 1/2 or 1"
#: Seconds for which telemetry uses the service's answer again. The driver tells memory and limit each second, and a
#: changed limit makes the service be asked at once; the rest, such as what others left free, may be so old.
SESSION_SECONDS = 5.0
_SHARE = re.compile(r"1/[248]|[1-9][0-9]?", re.ASCII)
_LONGEST = 8


class ShareInputError(ValueError):
    """A share that nobody could hold. `given` is short enough to print."""

    def __init__(self, given: str) -> None:
        self.given = given
        super().__init__(f"{given} is not a share: give {ALLOWED}.")


def shown(value: Any, longest: int = 40) -> str:
    """`repr` of a value, cut to be readable in one line, however large the value is."""
    if isinstance(value, str) and len(value) > longest:
        return f"{value[:longest]!r}… ({len(value):,} characters)"
    if isinstance(value, (list, dict)) and len(value) > 8:
        return f"a {type(value).__name__} of {len(value):,} entries"
    text = repr(value)
    return text if len(text) <= longest + 20 else text[: longest + 20] + "…"


def check_share(value: Any) -> str:
    """Return a share in the form the service reads, or raise `ShareInputError`.

    Only the form is checked here: whether the share is offered and free, the service knows.
    """
    if not isinstance(value, str) or len(value) > _LONGEST or _SHARE.fullmatch(value) is None:
        raise ShareInputError(shown(value))
    return value


def eighths(share: str) -> int:
    """Eighths of a checked share: '1/4' -> 2, '1' -> 8, '2' -> 16."""
    top, _, bottom = share.partition("/")
    return 8 * int(top) // int(bottom or 1)


def gib(size: int | None) -> str:
    """Bytes as GiB with one decimal; unknown is a dash, never 0."""
    return "–" if size is None else f"{size / 2**30:.1f}"


def total(values: Iterable[float | None]) -> float | None:
    """Sum, or None as soon as one part is unknown, or none is there."""
    parts = list(values)
    if not parts or any(part is None for part in parts):
        return None
    return sum(part for part in parts if part is not None)


def without_card(session: dict[str, Any] | None) -> bool:
    """Whether this is a session that was started with no card; False while it is not known."""
    return session is not None and session.get("share") == "none"


def session_memory(session: dict[str, Any] | None) -> int | None:
    """Bytes that a session may use on all its cards, from the service's figure for each of them; None without cards."""
    if session is None or session.get("memory_bytes") is None or without_card(session):
        return None
    return int(session["memory_bytes"]) * max(1, len(session.get("cards", [])))
