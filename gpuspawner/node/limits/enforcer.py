"""One interface to what can hold a session to its share of a card, and the choice among it for each card.

How strongly and how a share changes differs by what the machine offers: docs/explanation/enforcers.md has the table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gpuspawner.card import Card
from gpuspawner.errors import InvalidInput
from gpuspawner.share import EIGHTHS_PER_CARD, FRACTIONS, GPUShare

Name = Literal["mig", "virtual-function", "driver", "shim", "whole"]
Resize = Literal["live", "restart", "none"]

VARIABLE = "GPUSPAWNER_ENFORCERS"
#: By preference, where the variable is not set: `whole` is only for whoever asks for it.
AUTO: tuple[Name, ...] = ("mig", "virtual-function", "driver", "shim")
NAMES: tuple[Name, ...] = (*AUTO, "whole")


@dataclass(frozen=True)
class Place:
    """Where a session of a share runs: the uuid by which its programs find the device, and its memory in bytes."""

    visible_uuid: str
    memory_bytes: int


class Enforcer(Protocol):
    """Holds sessions to their shares of one card. The caller serialises all calls for one card.

    `kernel`: whether a session in a namespace of its own, not run by root, cannot get around it. `resize`: what a
    change of the share means for a session that runs.
    """

    name: Name
    kernel: bool
    resize: Resize
    #: Why it serves no fraction of the card, in one sentence; None where it does.
    only_whole: str | None

    def allows(self, eighths: int) -> bool:
        """Whether such a share of the card exists here at all."""
        ...

    def fits(self, taken: Sequence[int]) -> Mapping[int, int]:
        """How many sessions of each fraction could start beside those that hold `taken` eighths."""
        ...

    def take(self, session: str, eighths: int) -> Place:
        """Make room for a session, or find again what it has. Raises NoRoom."""
        ...

    def limit(self, session: str, memory_bytes: int) -> None:
        """Put a limit of memory in force; 0 for a session that has ended. Raises Unavailable, InUse."""
        ...

    def cgroup(self, session: str) -> str | None:
        """The cgroup that the session's processes must be in from the start."""
        ...

    def release(self, session: str) -> None:
        """Undo `take` for a session without processes. Again and for unknown sessions it does nothing."""
        ...


def by_eighths(taken: Sequence[int]) -> dict[int, int]:
    """How many of each fraction fit where eighths can be given out in any mix."""
    free = max(0, EIGHTHS_PER_CARD - sum(taken))
    return {eighths: free // eighths for eighths in FRACTIONS}


class ShimEnforcer:
    """The library before the driver: what every session has, and all that most machines offer for a part of a card."""

    name: Name = "shim"
    kernel = False
    resize: Resize = "live"
    only_whole: str | None = None

    def __init__(self, card: Card) -> None:
        self._card = card

    def allows(self, eighths: int) -> bool:
        """Every fraction."""
        return eighths in FRACTIONS

    def fits(self, taken: Sequence[int]) -> Mapping[int, int]:
        """As many as the free eighths hold."""
        return by_eighths(taken)

    def take(self, session: str, eighths: int) -> Place:
        """The card itself, and a part of its memory."""
        return Place(self._card.uuid, GPUShare(eighths).memory_bytes(self._card.memory_bytes))

    def limit(self, session: str, memory_bytes: int) -> None:
        """Nothing: the limit file says it."""

    def cgroup(self, session: str) -> str | None:
        """None is needed."""
        return None

    def release(self, session: str) -> None:
        """Nothing."""


class WholeEnforcer(ShimEnforcer):
    """Whole cards only. Nobody else is on the card; `kernel` where the other cards' device files can be hidden."""

    name: Name = "whole"
    resize: Resize = "none"

    def __init__(self, card: Card, *, kernel: bool, why: str = "This card is only given out whole.") -> None:
        super().__init__(card)
        self.kernel = kernel
        self.only_whole = why

    def allows(self, eighths: int) -> bool:
        """The whole card."""
        return eighths == EIGHTHS_PER_CARD

    def fits(self, taken: Sequence[int]) -> Mapping[int, int]:
        """One, if nobody is there."""
        return {eighths: int(eighths == EIGHTHS_PER_CARD and not taken) for eighths in FRACTIONS}


class VirtualFunctionEnforcer(WholeEnforcer):
    """An SR-IOV virtual function: a small device of its own, given out whole."""

    name: Name = "virtual-function"


def wanted(env: Mapping[str, str] = os.environ) -> tuple[Name, ...]:
    """The enforcers that may be used, best first, from GPUSPAWNER_ENFORCERS. Raises InvalidInput."""
    given = (env.get(VARIABLE) or "auto").strip()
    if given == "auto":
        return AUTO
    words = [word.strip() for word in given.split(",")]
    unknown = [word for word in words if word not in NAMES]
    if unknown or len(set(words)) != len(words):
        what = f"{unknown[0]!r} is not allowed" if unknown else f"{given!r} names one twice"
        raise InvalidInput(
            f"{VARIABLE}: {what}. Allowed: auto, or some of {', '.join(NAMES)}, joined by commas, best first.",
            field=VARIABLE,
            given=given,
            allowed=["auto", *NAMES],
        )
    return tuple(name for word in words for name in NAMES if name == word)
