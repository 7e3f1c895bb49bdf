"""What a card offers to a scheduler while the shares on it change. Pure sums, no I/O.

A claim's allocation cannot be changed, so what the card publishes changes instead:

    published(card) = 8 + (eighths promised by its live claims) - (eighths charged to its live and held claims)

The scheduler takes from that what the allocated claims promise, and is left with what is truly free:
8 - charged - promised to claims that are allocated and not prepared yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpuspawner.errors import NoRoom
from gpuspawner.share import EIGHTHS_PER_CARD, FRACTIONS, eighths_text


class Key(NamedTuple):
    """Which allocation: the claim's uid and the share ID that the scheduler gave it on this card. Both in one, since a
    claim may be allocated, deallocated and allocated anew."""

    claim: str
    share: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was not granted: a code of errors.py and a sentence; bytes to free, for a shrink below what is
    used."""

    code: str
    message: str
    need_to_free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Charge:
    """What one allocation has of one card, as the node's record on disk has it. All in eighths.

    `promised`: what the allocation consumes, unchanged for good. `limit`: what its processes may use. `charged`: what
    nobody else may have; more than `limit` while a forced shrink waits for memory to be freed. `held`: it has ended,
    and the driver still shows memory of it. `request`: the number of the last request that was answered, 0 for none,
    and `refused`: why that was refused.
    """

    key: Key
    promised: int
    limit: int
    charged: int
    held: bool = False
    request: int = 0
    refused: Refusal | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.limit <= self.charged <= EIGHTHS_PER_CARD or self.promised < 1 or (self.held and self.limit):
            raise ValueError(f"not a charge: {self}")


@dataclass(frozen=True, slots=True)
class Allocation:
    """An allocation of a card as the API server has it."""

    key: Key
    promised: int


def published(charges: Iterable[Charge], growing: Mapping[Key, int] | None = None) -> int:
    """The eighths that the card is to publish, never below 0. `growing`: the targets of grows under way, which count
    from before they are granted until they are answered."""
    growing = growing or {}
    total = EIGHTHS_PER_CARD
    for charge in charges:
        if not charge.held:
            total += charge.promised
        total -= max(charge.charged, growing.get(charge.key, 0))
    return max(0, total)


def requestable(eighths: int) -> list[int]:
    """The values that a request may have on a card that publishes `eighths`: the API server refuses a policy that
    names more than the capacity. Empty for a card with nothing to offer, which then has no policy."""
    return [each for each in FRACTIONS if each <= eighths]


def room(charges: Iterable[Charge], without: Key | None = None) -> int:
    """Eighths that are charged to nobody, leaving one allocation out."""
    return EIGHTHS_PER_CARD - sum(charge.charged for charge in charges if charge.key != without)


def start(charges: Collection[Charge], promised: int) -> Literal["fits", "wait", "refused"]:
    """Whether an allocation that has no record yet may be put in force. What is promised to others and not prepared
    does not count: two that did would refuse each other for ever. `wait`: only ended ones are in the way."""
    if promised <= room(charges):
        return "fits"
    held = sum(charge.charged for charge in charges if charge.held)
    return "wait" if promised <= room(charges) + held else "refused"


def at_most(eighths: int, wanted: int, beside: str = "") -> str:
    """Why a session that may have `eighths` of its card, its own included, does not get `wanted`."""
    return (
        f"This session can have {eighths_text(eighths)} of its card now: the rest is taken by others{beside}. "
        f"{eighths_text(wanted)} does not fit."
    )


def check_grow(charges: Collection[Charge], key: Key, target: int, allocated: Iterable[Allocation]) -> None:
    """Whether the limit of `key` may be raised to `target`. `allocated`: every allocation of the card, from a list that
    was begun after the card was published with the target. Raises NoRoom."""
    known = {charge.key for charge in charges}
    starting = sum(each.promised for each in allocated if each.key not in known)
    free = room(charges, without=key) - starting
    if target > free:
        beside = f", {eighths_text(starting)} of it by sessions that are starting" if starting else ""
        raise NoRoom(at_most(max(0, free), target, beside), free_eighths=max(0, free))
