"""Shares of a card, counted in exact eighths. Pure values, no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gpuspawner.errors import InvalidInput

EIGHTHS_PER_CARD = 8
#: The parts of one card that are offered, smallest first. They are the powers of two, so that a card
#: that holds any mix of them never has eighths left over that no offered share fits.
FRACTIONS: tuple[int, ...] = (1, 2, 4, 8)
MAX_CARDS = 64
#: The share of a session without a card.
NONE = "none"
ALLOWED = (
    '1/8, 1/4, 1/2, 1 or a whole number of cards (such as "2"), with a model in front where wanted ("a100:1/4"), '
    'or "none"'
)

_MODEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\Z", re.ASCII)
_BY_TEXT = {NONE: 0, "1/8": 1, "1/4": 2, "1/2": 4, "1": 8}
_CARDS = re.compile(r"[1-9][0-9]?\Z", re.ASCII)
_LONGEST = 64


class ShareError(InvalidInput, ValueError):
    """A share that cannot be read or is not offered."""

    code = "invalid_share"


@dataclass(frozen=True, slots=True)
class GPUShare:
    """What a session holds: `eighths` in all (1, 2 or 4 of one card, or 8 for each whole card; 0: no card at all),
    and the card model it asks for, if any.

    Raises ShareError for any other number of eighths.
    """

    eighths: int
    model: str | None = None

    def __post_init__(self) -> None:
        if type(self.eighths) is not int:
            raise share_error(self.eighths)
        whole = self.eighths % EIGHTHS_PER_CARD == 0 and 1 <= self.eighths // EIGHTHS_PER_CARD <= MAX_CARDS
        if self.eighths not in (0, *FRACTIONS) and not whole:
            raise share_error(f"{self.eighths}/8")
        if not self.eighths and self.model is not None:
            raise share_error(self.model, field="model", allowed=f"no model together with {NONE!r}")
        if self.model is not None and (type(self.model) is not str or not _MODEL.match(self.model)):
            raise share_error(self.model, field="model", allowed="lower-case letters, digits and dashes")

    @classmethod
    def parse(cls, text: Any, field: str = "share") -> GPUShare:
        """The share written as `text`: "1/8", "1/4", "1/2", "1", "2" (cards), "a100:1/4", "none".

        Raises ShareError, naming `field`, for everything else, numbers included: a share is text.
        """
        if type(text) is not str or len(text) > _LONGEST:
            raise share_error(text, field)
        model, colon, amount = text.rpartition(":")
        if colon and not _MODEL.match(model):
            raise share_error(text, field)
        eighths = _BY_TEXT.get(amount)
        if eighths is None and _CARDS.match(amount) and int(amount) <= MAX_CARDS:
            eighths = int(amount) * EIGHTHS_PER_CARD
        if eighths is None:
            raise share_error(text, field)
        if not eighths and model:
            raise share_error(text, field)
        return cls(eighths, model or None)

    @property
    def cards(self) -> int:
        """How many cards it touches."""
        return max(1, self.eighths // EIGHTHS_PER_CARD) if self.eighths else 0

    @property
    def eighths_per_card(self) -> int:
        """Eighths on each of its cards, 1 to 8; 0 where it has none."""
        return self.eighths // max(1, self.cards)

    @property
    def amount(self) -> str:
        """The share without its model: "1/4", "1", "2", "none"."""
        return str(Fraction(self.eighths, EIGHTHS_PER_CARD)) if self.eighths else NONE

    def __str__(self) -> str:
        return f"{self.model}:{self.amount}" if self.model else self.amount

    def memory_bytes(self, card_bytes: int) -> int:
        """Bytes allowed on each of its cards, for cards of `card_bytes`. Rounded down, so that the shares
        of one card never add up to more than the card."""
        return card_bytes * self.eighths_per_card // EIGHTHS_PER_CARD


def share_error(given: Any, field: str = "share", allowed: str = ALLOWED) -> ShareError:
    """The ShareError for `given`, saying what is allowed."""
    error = ShareError("", field=field, given=given, allowed=allowed)
    error.message = f"{field}: {error.given!r} is not allowed. Allowed: {allowed}."
    error.args = (error.message,)
    return error


def eighths_text(eighths: int) -> str:
    """A count of eighths in words for messages: 3 -> "3/8", 4 -> "1/2", 0 -> "nothing"."""
    return str(Fraction(eighths, EIGHTHS_PER_CARD)) if eighths else "nothing"
