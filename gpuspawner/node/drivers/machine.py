"""All cards of one machine, whoever made them: each is asked about through the driver of its vendor."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gpuspawner.card import Card
from gpuspawner.node.drivers import amd
from gpuspawner.node.drivers.base import Access, Driver, DriverError, Sample
from gpuspawner.node.drivers.nvml import NVMLDriver
from gpuspawner.node.health import Readings

T = TypeVar("T")
log = logging.getLogger(__name__)


def of_machine(env: Mapping[str, str] = os.environ) -> Driver:
    """The driver or drivers for GPUSPAWNER_CARDS: by `auto` NVIDIA's cards and, where `amdsmi` is installed, AMD's."""
    wanted = env.get("GPUSPAWNER_CARDS") or "auto"
    if wanted == "amd":
        return amd.AMDDriver()
    if wanted == "auto" and amd.installed():
        return Drivers([NVMLDriver(), amd.AMDDriver()])
    return NVMLDriver()


class Drivers:
    """Several drivers as one (`base.Driver`). One that does not answer is no reason to do without the others."""

    def __init__(self, drivers: Sequence[Driver]) -> None:
        self._drivers = drivers
        self._by_card: dict[str, Driver] = {}
        self._silent: set[int] = set()

    def cards(self) -> list[Card]:
        """All cards, those of each driver after those of the one before."""
        found: list[Card] = []
        problems: list[DriverError] = []
        for number, driver in enumerate(self._drivers):
            try:
                cards = driver.cards()
            except DriverError as error:
                problems.append(error)
                if number not in self._silent:
                    log.warning("%s Other cards are served without it. Said once.", error)
                self._silent.add(number)
                continue
            self._silent.discard(number)
            first = 1 + max((card.index for card in found), default=-1)
            for card in cards:
                self._by_card[card.uuid] = driver
                found.append(replace(card, index=first + card.index))
        if not found and problems:
            raise problems[0]
        return found

    def missing(self) -> bool:
        """Whether any of them misses a card, or did not answer."""
        return bool(self._silent) or any(driver.missing() for driver in self._drivers)

    def only_whole(self, uuid: str) -> str | None:
        """As the card's driver says."""
        return self._of(uuid).only_whole(uuid)

    def access(self, uuids: Collection[str]) -> Access:
        """All together."""
        parts = [driver.access(uuids) for driver in self._drivers]
        return Access(
            frozenset(uuid for part in parts for uuid in part.cards),
            {name: value for part in parts for name, value in part.env.items()},
            tuple(path for part in parts for path in part.own),
            tuple(path for part in parts for path in part.hidden),
        )

    def used_bytes(self, uuid: str) -> dict[int, int | None]:
        """As the card's driver says."""
        return self._of(uuid).used_bytes(uuid)

    def samples(self, uuid: str) -> list[Sample]:
        """As the card's driver says."""
        return self._of(uuid).samples(uuid)

    def idle(self, uuid: str) -> bool | None:
        """As the card's driver says."""
        return self._of(uuid).idle(uuid)

    def readings(self, uuid: str, xids: tuple[int, ...]) -> Readings:
        """As the card's driver says."""
        try:
            return self._of(uuid).readings(uuid, xids)
        except DriverError:
            return Readings(answers=False, xids=xids)

    def new_xids(self) -> list[tuple[str, int]]:
        """Of all cards."""
        return [each for driver in self._drivers for each in driver.new_xids()]

    def with_card(self, uuid: str, do: Callable[[Any], T], late: Callable[[T], object] | None = None) -> T:
        """As the card's driver does."""
        return self._of(uuid).with_card(uuid, do, late)

    @property
    def cuda_library(self) -> Path | None:
        """The first that there is."""
        return next((path for driver in self._drivers if (path := driver.cuda_library)), None)

    @property
    def nvml_library(self) -> Path | None:
        """The first that there is."""
        return next((path for driver in self._drivers if (path := driver.nvml_library)), None)

    def _of(self, uuid: str) -> Driver:
        if uuid not in self._by_card:
            raise DriverError(f"There is no card {uuid} on this machine.")
        return self._by_card[uuid]
