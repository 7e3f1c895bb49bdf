"""The cards' energy counters, and what they do now, as their driver tells it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pynvml

from gpuspawner.node.drivers.base import Driver, DriverError


def _counter(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))


def read(driver: Driver, uuids: Iterable[str]) -> dict[str, int]:
    """Millijoules since the driver was loaded, by uuid; without the cards that have no counter or do not answer."""
    found = {}
    for uuid in list(uuids):
        try:
            found[uuid] = driver.with_card(uuid, _counter)
        except DriverError:
            continue
    return found


@dataclass(frozen=True)
class Now:
    """A card now; None where its driver does not say. Watts, degrees Celsius."""

    memory_used_bytes: int | None
    utilization_percent: int | None
    temperature: int | None
    power_watts: float | None


def now(driver: Driver, uuids: Iterable[str]) -> dict[str, Now]:
    """What the driver shows of each card."""
    found = {}
    for uuid in list(uuids):
        said = driver.readings(uuid, ())
        watts = None if said.power_mw is None else said.power_mw / 1000
        found[uuid] = Now(_memory(driver, uuid), said.utilization_percent, said.temperature, watts)
    return found


def _memory(driver: Driver, uuid: str) -> int | None:
    try:
        return driver.with_card(uuid, lambda handle: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used))
    except DriverError:
        return None
