"""The cards' energy counters, as their driver tells them."""

from __future__ import annotations

from collections.abc import Iterable
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
