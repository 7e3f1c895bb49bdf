"""Which cards this machine serves: its own, or simulated ones where it has none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpuspawner.errors import InvalidInput, Unavailable, shorten
from gpuspawner.node.drivers import amd
from gpuspawner.simulation.cards import SimulationError, check_spec
from gpuspawner.state import yes_or_no

CHOICES = ("auto", "nvidia", "amd", "simulated")
DEFAULT_SIMULATED = "2*h100-80gb"

# In a process of its own: a driver library, once loaded, stays, and a broken one may take its process along.
_COUNT_NVIDIA = """
import pynvml
try:
    pynvml.nvmlInit()
    print(pynvml.nvmlDeviceGetCount())
except pynvml.NVMLError as error:
    print(error)
"""
_COUNT_AMD = """
import amdsmi
try:
    amdsmi.amdsmi_init()
    print(len(amdsmi.amdsmi_get_processor_handles()))
except amdsmi.AmdSmiException as error:
    print(error)
"""
_COUNT_WITHIN_S = 20
_CARDS = "GPUSPAWNER_CARDS"
_LIBRARIES = {"nvidia": "NVML", "amd": "amdsmi"}


@dataclass(frozen=True)
class CardsPlan:
    """`kind` of cards, and for simulated ones what the daemon is to play. `reason` says why, for a person. `timed`:
    launches on simulated cards take time instead of being refused.
    """

    kind: Literal["nvidia", "amd", "simulated"]
    reason: str
    simulated_spec: str | None = None
    timed: bool = False
    env: dict[str, str] = field(default_factory=dict)


def choose(env: Mapping[str, str] = os.environ) -> CardsPlan:
    """The plan for GPUSPAWNER_CARDS (auto, nvidia, amd, simulated) and GPUSPAWNER_SIMULATED.

    Raises InvalidInput for another word and for cards that cannot be simulated, Unavailable where real cards are
    asked for and none is found.
    """
    wanted = env.get("GPUSPAWNER_CARDS", "auto") or "auto"
    if wanted not in CHOICES:
        raise InvalidInput(
            f"GPUSPAWNER_CARDS: {wanted!r} is not allowed. Allowed: {', '.join(CHOICES)}.",
            field="GPUSPAWNER_CARDS",
            given=wanted,
            allowed=list(CHOICES),
        )
    if wanted == "simulated":
        return _simulated(env, "GPUSPAWNER_CARDS=simulated")
    said = []
    kinds: tuple[Literal["nvidia", "amd"], ...] = ("nvidia", "amd")
    for kind in kinds:
        if wanted not in ("auto", kind):
            continue
        count, found = count_nvidia_cards() if kind == "nvidia" else count_amd_cards()
        if count:
            reason = f"{_LIBRARIES[kind]} found {count} card{'s' if count > 1 else ''}"
            return CardsPlan(kind, reason if wanted == "auto" else f"{_CARDS}={kind}")
        said.append(f"{_LIBRARIES[kind]} found no card on this machine: {found}")
    if wanted != "auto":
        raise Unavailable(
            f"{_CARDS}: {wanted!r} was asked for. {said[0].rstrip('.')}. "
            f"Allowed: {wanted} with a driver and a card, auto (simulated cards where there is none), simulated.",
            code="driver",
            field=_CARDS,
            given=wanted,
            allowed=list(CHOICES),
        )
    return _simulated(env, said[0])


def _simulated(env: Mapping[str, str], reason: str) -> CardsPlan:
    spec = env.get("GPUSPAWNER_SIMULATED") or DEFAULT_SIMULATED
    try:
        check_spec(spec)
    except SimulationError as error:
        allowed = str(error).partition("allowed ")[2].removeprefix("is ").removeprefix("are ")
        raise InvalidInput(
            f"GPUSPAWNER_SIMULATED: {shorten(spec)!r} is not allowed. Allowed: {allowed or error}.",
            field="GPUSPAWNER_SIMULATED",
            given=spec,
            allowed=allowed or str(error),
        ) from error
    return CardsPlan("simulated", reason, spec, yes_or_no(env, "GPUSPAWNER_SIMULATED_TIMED"))


def count_nvidia_cards() -> tuple[int, str]:
    """How many cards the machine's own NVML finds, and what it said where that is none."""
    return _count(_COUNT_NVIDIA, "NVML")


def count_amd_cards() -> tuple[int, str]:
    """How many cards AMD's library finds, and what it said where that is none."""
    return _count(_COUNT_AMD, "amdsmi") if amd.installed() else (0, "it is not installed")


def _count(program: str, library: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=_COUNT_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 0, f"{library} did not answer within {_COUNT_WITHIN_S} s"
    said = done.stdout.strip()
    if done.returncode < 0:
        return 0, f"{library} ended its process by signal {-done.returncode}"
    if said.isdigit():
        return int(said), f"{library} answers and lists none"
    return 0, said or (done.stderr.strip().splitlines() or [f"{library} could not be tried"])[-1]
