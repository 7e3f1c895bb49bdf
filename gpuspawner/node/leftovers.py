"""What a stopped installation leaves behind outside its state folder: the cgroups of its sessions."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpuspawner.errors import GPUSpawnerError
from gpuspawner.node import installation
from gpuspawner.node.drivers.nvml import NVMLDriver
from gpuspawner.node.limits import cgroups, driver_limits


def remove_cgroups(state: Path, below: Path | None = None) -> list[Path]:
    """Remove the cgroups of the installation with that state folder, whose agent has ended. Returns those that have
    processes and stay. `below`: where cgroups are, if not where the kernel says."""
    below = below or cgroups.root()
    if below is None:
        return []
    own = cgroups.SessionCgroups(below, installation.short_name(state))
    left = [path for path in own.paths() if not cgroups.in_use(path)]
    with contextlib.suppress(GPUSpawnerError):
        _take_limits_away(left)
    for path in left:
        own.remove(path.name)
    own.close()
    return own.paths()


def _take_limits_away(folders: list[Path]) -> None:
    """Before a cgroup goes, or the driver keeps what it reserved for it. Simulated cards have ended by then."""
    if not folders:
        return
    driver = NVMLDriver()
    for card in driver.cards():
        for folder in folders:
            with contextlib.suppress(GPUSpawnerError):
                driver_limits.set_limit(driver, card.uuid, str(folder), driver_limits.NO_LIMIT)
