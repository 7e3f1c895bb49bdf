"""Which device files a session must not see: those of other cards and of other sessions' MIG slices.

NVIDIA, MIG User Guide, "Device Nodes and Capabilities": a slice is used through `/dev/nvidia-caps/nvidia-capN`, with N
from `/proc/driver/nvidia/capabilities/gpuM/mig/giG/access` and the like for its compute instance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

DEV = Path("/dev")
CAPABILITIES = Path("/proc/driver/nvidia/capabilities")
_CARD = re.compile(r"nvidia[0-9]+\Z")
_MINOR = re.compile(r"DeviceFileMinor:\s*([0-9]+)")


@dataclass(frozen=True)
class Own:
    """A card by its minor number, and for a slice its GPU instance."""

    minor: int
    gpu_instance: int | None = None


def can_hide(minor: int, dev: Path = DEV) -> bool:
    """Whether the card is reached through a device file of its own; simulated cards are not."""
    return (dev / f"nvidia{minor}").exists()


def to_hide(own: Iterable[Own], dev: Path = DEV, capabilities: Path = CAPABILITIES) -> list[Path]:
    """Device files of cards and slices that are not the session's."""
    mine = list(own)
    cards = {f"nvidia{each.minor}" for each in mine}
    hidden = [path for path in sorted(dev.glob("nvidia*")) if _CARD.match(path.name) and path.name not in cards]
    keep = {cap for each in mine for cap in _capabilities_of(each, capabilities)}
    caps = sorted((dev / "nvidia-caps").glob("nvidia-cap*"))
    return hidden + [path for path in caps if path.name not in keep]


def _capabilities_of(own: Own, capabilities: Path) -> set[str]:
    if own.gpu_instance is None:
        return set()
    folder = capabilities / f"gpu{own.minor}" / "mig" / f"gi{own.gpu_instance}"
    found = set()
    for access in (folder / "access", *folder.glob("ci*/access")):
        try:
            match = _MINOR.search(access.read_text())
        except OSError:
            continue
        if match:
            found.add(f"nvidia-cap{match.group(1)}")
    return found
