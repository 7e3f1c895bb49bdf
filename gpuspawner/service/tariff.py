"""What a share is charged per hour, in whole millionths of the currency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from gpuspawner.share import EIGHTHS_PER_CARD, GPUShare

MICROS = 1_000_000

#: Percent of the whole card's price by eighths. The smallest share is the cheapest way in, and dearer
#: per eighth than the whole card, since it keeps the rest of the card from being sold whole.
DEFAULT_PERCENT: Mapping[int, int] = {1: 25, 2: 40, 4: 65, 8: 100}

#: Whole-card prices per hour by card family; an operator sets their own.
DEFAULT_WHOLE_CARD: Mapping[str, int] = {
    "v100": 800_000,
    "a100": 2_000_000,
    "h100": 3_200_000,
    "h200": 4_000_000,
}


@dataclass(frozen=True)
class Tariff:
    """Prices per hour, in millionths of `currency`. `whole_card` is keyed by model slug or family."""

    currency: str = "EUR"
    whole_card: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_WHOLE_CARD))
    percent: Mapping[int, int] = field(default_factory=lambda: dict(DEFAULT_PERCENT))
    default: int = 2_000_000

    def price_micros(self, share: GPUShare, model: str) -> int:
        """Price per hour of `share` of a card of `model`. Where it has no card, there is nothing to charge."""
        if not share.cards:
            return 0
        whole = self.whole_card.get(model, self.whole_card.get(model.partition("-")[0], self.default))
        if share.eighths >= EIGHTHS_PER_CARD:
            return whole * share.cards
        return whole * self.percent[share.eighths] // 100

    def price(self, share: GPUShare, model: str) -> str:
        """The same as decimal text with at least two places: "0.80"."""
        return money(self.price_micros(share, model))


def money(micros: int) -> str:
    """Millionths as decimal text, at least two places and no more than needed: 800000 -> "0.80"."""
    value = Decimal(micros) / MICROS
    cents = value.quantize(Decimal("0.01"))
    return str(cents if cents == value else value.normalize())
