"""Which cards this machine serves: its own, or simulated ones where it has none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpuspawner.errors import InvalidInput

CHOICES = ("auto", "nvidia", "simulated")
DEFAULT_SIMULATED = "2*h100-80gb"

# In a process of its own: a driver library, once loaded, stays, and a broken one may take its process along.
_COUNT_CARDS = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"


@dataclass(frozen=True)
class CardsPlan:
    """`kind` of cards, and for simulated ones what the daemon is to play. `reason` says why, for a person."""

    kind: Literal["nvidia", "simulated"]
    reason: str
    simulated_spec: str | None = None
    env: dict[str, str] = field(default_factory=dict)


def choose(env: Mapping[str, str] = os.environ) -> CardsPlan:
    """The plan for GPUSPAWNER_CARDS (auto, nvidia, simulated) and GPUSPAWNER_SIMULATED.

    Raises InvalidInput for another word.
    """
    wanted = env.get("GPUSPAWNER_CARDS", "auto") or "auto"
    if wanted not in CHOICES:
        raise InvalidInput(
            f"GPUSPAWNER_CARDS: {wanted!r} is not allowed. Allowed: {', '.join(CHOICES)}.",
            field="GPUSPAWNER_CARDS",
            given=wanted,
            allowed=list(CHOICES),
        )
    if wanted == "nvidia":
        return CardsPlan("nvidia", "GPUSPAWNER_CARDS=nvidia")
    if wanted == "auto" and (count := count_nvidia_cards()):
        return CardsPlan("nvidia", f"NVML found {count} card{'s' if count > 1 else ''}")
    reason = "GPUSPAWNER_CARDS=simulated" if wanted == "simulated" else "NVML found no card on this machine"
    return CardsPlan("simulated", reason, env.get("GPUSPAWNER_SIMULATED") or DEFAULT_SIMULATED)


def count_nvidia_cards() -> int:
    """How many cards the machine's own NVML finds; 0 without a driver."""
    done = subprocess.run([sys.executable, "-c", _COUNT_CARDS], capture_output=True, text=True, timeout=60, check=False)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdigit() else 0
