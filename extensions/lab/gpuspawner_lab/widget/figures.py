"""What the widget shows, as plain JSON: the session as the service tells it and the cards as the driver does."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gpuspawner_lab.ask import Refusal, get_session, session_id
from gpuspawner_lab.nvml import CardReading, NVMLReader, NVMLUnavailable
from gpuspawner_lab.report import Status
from gpuspawner_lab.service_words import NO_CARD
from gpuspawner_lab.shares import SESSION_SECONDS, total, without_card

#: Seconds that are spent waiting for the service.
SERVICE_PATIENCE = 5.0

#: What of the session is put into the notebook: no names of people, no ids.
_KEPT = ("share", "eighths", "price_per_hour", "currency", "grade", "simulated", "resizable", "options", "free_eighths")


class Source:
    """Reads service and driver; one for all widgets. Not for several threads at once."""

    def __init__(self, reader: NVMLReader | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader or NVMLReader()
        self._clock = clock
        self._asked = float("-inf")
        self._session: dict[str, Any] | None = None
        self._problem: str | None = None
        self._allowed: float | None = None

    def forget(self) -> None:
        """Ask the service at the next sample, however fresh its last answer is."""
        self._asked = float("-inf")

    def sample(self) -> dict[str, Any]:
        """Figures of now. Never raises: what is not known is None, with the reason beside it."""
        cards, reason = self._cards()
        allowed = total(card.memory_allowed_bytes for card in cards)
        # A changed limit is a changed share.
        if allowed != self._allowed or self._clock() - self._asked >= SESSION_SECONDS:
            self._ask()
        self._allowed = allowed
        if without_card(self._session):  # whatever cards the driver shows here are not this session's
            cards, reason = [], NO_CARD
        return figures(self._session, cards, reason, self._problem)

    def _cards(self) -> tuple[list[CardReading], str | None]:
        wanted = [card["uuid"] for card in (self._session or {}).get("cards", [])]
        try:
            return self._reader.read(wanted), None
        except NVMLUnavailable as error:
            return [], str(error)
        except Exception as error:  # a driver's library of an unexpected kind must not end the sampling
            return [], f"The driver could not be read ({type(error).__name__})."

    def _ask(self) -> None:
        try:
            self._session, self._problem = get_session(SERVICE_PATIENCE), None
        except Refusal as refusal:
            self._problem = str(refusal)
            if session_id() is None:
                self._session = None
        self._asked = self._clock()


def figures(
    session: dict[str, Any] | None, cards: list[CardReading], reason: str | None, service_reason: str | None
) -> dict[str, Any]:
    """The widget's figures as JSON; `available` says whether the driver could be read, `reason` why not."""
    known = session or {}
    shown = Status(session, tuple(cards))
    loads = total(card.utilization_percent for card in cards)
    heat = [card.temperature_celsius for card in cards if card.temperature_celsius is not None]
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "available": bool(cards),
        "reason": None if cards else reason or "There is no reading yet.",
        "service_reason": service_reason,
        "title": shown.title() if session or cards else "GPU share",
        "memory_used_bytes": shown.used,
        "memory_allowed_bytes": shown.allowed,
        "utilization_percent": None if loads is None else round(loads / len(cards), 1),
        "power_watts": total(card.power_watts for card in cards),
        "temperature_celsius": max(heat) if heat else None,
        "notices": [str(each["message"])[:300] for each in known.get("notices", []) if "message" in each][:5],
        **{name: known.get(name) for name in _KEPT},
    }
