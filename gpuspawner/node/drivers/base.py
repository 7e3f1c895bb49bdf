"""What the node needs of the driver of some cards, whoever made them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gpuspawner.card import Card
from gpuspawner.errors import Unavailable
from gpuspawner.node.health import Readings

T = TypeVar("T")


class DriverError(Unavailable):
    """The driver is not there or does not answer."""

    code = "driver"


@dataclass(frozen=True)
class Sample:
    """What the driver says that a process did on a card of late.

    `stamp` only tells samples of a process apart: it follows a clock that may be set. `percent` of the card's time
    computing; `worked`: whether it did anything at all, copying and coding included.
    """

    pid: int
    stamp: int
    percent: int
    worked: bool


@dataclass(frozen=True)
class Access:
    """How a session's programs reach the cards of one driver that it holds, and no others.

    `cards`: those of them that programs find by `env` and not by NVIDIA's variables. `own`: device files that they
    need, `hidden`: those of the driver's other cards.
    """

    cards: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)
    own: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()


class Driver(Protocol):
    """The driver of some cards. Thread-safe. Every method but `readings` and `new_xids` raises DriverError where the
    driver does not answer, and none waits long for one that is silent.
    """

    def cards(self) -> list[Card]:
        """The cards that can be used now, by index."""
        ...

    def missing(self) -> bool:
        """Whether there were cards at the last `cards` that could not be used."""
        ...

    def only_whole(self, uuid: str) -> str | None:
        """Why a card can only be given out whole, in one sentence; None where it can be shared."""
        ...

    def access(self, uuids: Collection[str]) -> Access:
        """How a session that holds the cards `uuids` (maybe none of this driver's) reaches them."""
        ...

    def used_bytes(self, uuid: str) -> dict[int, int | None]:
        """Bytes in use on a card by process id (in this process's PID namespace); None where the driver knows that
        the process uses the card, but not how much."""
        ...

    def samples(self, uuid: str) -> list[Sample]:
        """All that the driver still knows of what processes did on a card. Also raises where it does not tell."""
        ...

    def idle(self, uuid: str) -> bool | None:
        """Whether the card as a whole computes nothing now; None where the driver does not tell."""
        ...

    def readings(self, uuid: str, xids: tuple[int, ...]) -> Readings:
        """What the driver tells of a card's health now, with the XID codes that are known of it."""
        ...

    def new_xids(self) -> list[tuple[str, int]]:
        """Card and code of the XID events since the last call."""
        ...

    def with_card(self, uuid: str, do: Callable[[Any], T], late: Callable[[T], object] | None = None) -> T:
        """What `do` returns for the card's NVML handle. `late` undoes what `do` did after all though its answer was
        waited for in vain. Raises DriverError, with NVML's own error as its cause, also for cards without NVML."""
        ...

    @property
    def cuda_library(self) -> Path | None:
        """The driver library that programs load, to be put behind the shim."""
        ...

    @property
    def nvml_library(self) -> Path | None:
        """The NVML library, to be put behind its shim."""
        ...
