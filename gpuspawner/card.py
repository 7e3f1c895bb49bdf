"""Cards and their models. Pure values, no I/O."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

GIB = 1 << 30
SIMULATED_SUFFIX = " (simulated)"

#: Card families that the name reported by the driver is matched against, longest first.
_FAMILIES = (
    "h200",
    "h100",
    "a100",
    "v100",
    "mi300x",
    "mi300",
    "mi100",
    "l40s",
    "l40",
    "l4",
    "a40",
    "a30",
    "a10",
    "t4",
)
#: Sizes in GB that vendors print on the card, for the driver's byte counts are a little off them.
_SIZES = (4, 6, 8, 10, 11, 12, 16, 20, 22, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 192, 256, 288)


@dataclass(frozen=True, slots=True)
class Card:
    """One physical card as its driver reports it. `memory_bytes` is the whole card's memory."""

    uuid: str
    index: int
    name: str
    memory_bytes: int

    @property
    def model(self) -> str:
        """The model's slug, such as "h100-80gb"."""
        return model_slug(self.name, self.memory_bytes)

    @property
    def simulated(self) -> bool:
        """Whether the driver itself calls the card simulated; used for labels only."""
        return self.name.endswith(SIMULATED_SUFFIX)

    def is_model(self, wanted: str | None) -> bool:
        """Whether it is of the wanted model: any for None, else the slug or its family ("h100")."""
        return wanted is None or self.model == wanted or self.model.startswith(f"{wanted}-")


@functools.lru_cache(maxsize=4096)
def model_slug(name: str, memory_bytes: int) -> str:
    """The slug for a card that the driver calls `name`: family and printed size, "a100-40gb".

    >>> model_slug("NVIDIA A100-SXM4-40GB", 42949672960)
    'a100-40gb'
    """
    words = re.split(r"[^a-z0-9]+", name.removesuffix(SIMULATED_SUFFIX).lower())
    family = next((family for family in _FAMILIES if family in words), None)
    if family is None:
        rest = "-".join(word for word in words if word and word not in ("nvidia", "amd", "tesla"))
        return rest[:24].strip("-") or "card"
    return f"{family}-{_printed_size(memory_bytes)}gb"


def _printed_size(memory_bytes: int) -> int:
    """The vendor's size nearest to the driver's bytes, which count in GiB or in GB by model."""
    return min(_SIZES, key=lambda size: min(abs(memory_bytes - size * GIB), abs(memory_bytes - size * 10**9)))
