"""What a share is charged per hour and what a node costs, in whole millionths of the currency."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Protocol, TypeVar
from zoneinfo import ZoneInfo

from gpuspawner.service.clock import moment
from gpuspawner.service.policy.schema import Grid, GridSource, NodeCost, PolicyFile, Prices
from gpuspawner.share import EIGHTHS_PER_CARD, GPUShare

MICROS = 1_000_000

#: Percent of the whole card's price by eighths. The smallest share is the cheapest way in, and dearer
#: per eighth than the whole card, since it keeps the rest of the card from being sold whole.
DEFAULT_PERCENT: Mapping[int, int] = {1: 25, 2: 40, 4: 65, 8: 100}

#: Whole-card prices per hour by card family, where the policy file has none.
DEFAULT_WHOLE_CARD: Mapping[str, int] = {
    "v100": 800_000,
    "a100": 2_000_000,
    "h100": 3_200_000,
    "h200": 4_000_000,
}


class Pricing(Protocol):
    """What something costs now."""

    @property
    def currency(self) -> str:
        """Three letters of ISO 4217."""
        ...

    def price_micros(self, share: GPUShare, model: str) -> int:
        """Price per hour of `share` of a card of `model`."""
        ...

    def price(self, share: GPUShare, model: str) -> str:
        """The same as decimal text with at least two places: "0.80"."""
        ...


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


class _Begins(Protocol):
    @property
    def since(self) -> datetime | None: ...


_T = TypeVar("_T", bound=_Begins)


def _newest(entries: Sequence[_T], at: datetime) -> _T | None:
    """The entry that began last; of two that began together the one further down."""
    begun = [entry for entry in entries if entry.since is None or entry.since <= at]
    return max(reversed(begun), key=_start, default=None)


def _start(entry: _Begins) -> float:
    return float("-inf") if entry.since is None else entry.since.timestamp()


@dataclass(frozen=True)
class PriceList:
    """Prices, costs and the grid with the moments from which each holds."""

    currency: str = "EUR"
    timezone: str = "UTC"
    prices: tuple[Prices, ...] = ()
    costs: tuple[NodeCost, ...] = ()
    grid: tuple[Grid, ...] = ()
    grid_live: GridSource | None = None

    @classmethod
    def of(cls, file: PolicyFile) -> PriceList:
        """The prices of a policy file."""
        lists = (tuple(file.prices), tuple(file.costs), tuple(file.grid))
        return cls(file.currency, file.timezone, *lists, file.grid_live)

    @property
    def zone(self) -> ZoneInfo:
        """In which months begin."""
        return ZoneInfo(self.timezone)

    def at(self, moment: datetime) -> Tariff:
        """The tariff of a moment."""
        newest = _newest(self.prices, moment)
        if newest is None:
            return Tariff(self.currency)
        percent = {GPUShare.parse(amount).eighths: part for amount, part in newest.percent.items()}
        default = Tariff().default if newest.other is None else newest.other
        return Tariff(self.currency, dict(newest.whole_card), {**DEFAULT_PERCENT, **percent}, default)

    def changes(self) -> list[int]:
        """The moments at which prices, costs or the grid change, in ms since the epoch, oldest first."""
        entries: list[_Begins] = [*self.prices, *self.costs, *self.grid]
        return sorted({int(entry.since.timestamp() * 1000) for entry in entries if entry.since is not None})

    def cost_micros(self, node: str, moment: datetime) -> int | None:
        """What a node costs per hour; None where nobody said it. What names the node goes before what names none."""
        own = _newest([cost for cost in self.costs if cost.node == node], moment)
        cost = own or _newest([cost for cost in self.costs if cost.node is None], moment)
        return None if cost is None else cost.per_hour

    def grams_per_kwh(self, moment: datetime) -> tuple[int, str] | None:
        """Grams of carbon dioxide per kilowatt hour, and where the figure is from."""
        grid = _newest(self.grid, moment)
        return None if grid is None else (grid.grams_per_kwh, grid.source)


class CurrentTariff:
    """The tariff of now, of whatever price list is in force."""

    def __init__(self, prices: Callable[[], PriceList]) -> None:
        self._prices = prices

    @property
    def _now(self) -> Tariff:
        return self._prices().at(moment())

    @property
    def currency(self) -> str:
        """Three letters of ISO 4217."""
        return self._prices().currency

    def price_micros(self, share: GPUShare, model: str) -> int:
        """Price per hour of `share` of a card of `model`."""
        return self._now.price_micros(share, model)

    def price(self, share: GPUShare, model: str) -> str:
        """The same as decimal text with at least two places: "0.80"."""
        return self._now.price(share, model)


def money(micros: int) -> str:
    """Millionths as decimal text, at least two places and no more than needed: 800000 -> "0.80"."""
    value = Decimal(micros) / MICROS
    cents = value.quantize(Decimal("0.01"))
    return str(cents if cents == value else value.normalize())
