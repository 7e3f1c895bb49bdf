"""Readings of this process's cards: energy, power, load. By NVML (`pynvml`), else by the kernel's sensors."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Reading:
    """One card at one moment. `joules`: its counter since the driver was loaded. None is unknown."""

    uuid: str
    joules: float | None
    watts: float | None
    load: float | None


class Source(Protocol):
    """Where readings come from."""

    name: str

    def read(self) -> Sequence[Reading]:
        """Read all cards. Never raises; a card that does not answer is left out."""


class NVML:
    """NVIDIA's library, by `pynvml`. Only the cards that this process may see."""

    name = "NVML"

    def __init__(self) -> None:
        """Raises ImportError without `pynvml`, OSError where the driver has no cards for us."""
        self._nvml: Any = importlib.import_module("pynvml")
        try:
            self._nvml.nvmlInit()
            self._handles = self._visible()
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from None
        if not self._handles:
            raise OSError("NVML shows no card that this process may use")

    def read(self) -> Sequence[Reading]:
        """Read all cards."""
        return [reading for uuid, handle in self._handles if (reading := self._reading(uuid, handle)) is not None]

    def _reading(self, uuid: str, handle: Any) -> Reading | None:
        joules = self._ask("nvmlDeviceGetTotalEnergyConsumption", handle)
        watts = self._ask("nvmlDeviceGetPowerUsage", handle)
        load = self._ask("nvmlDeviceGetUtilizationRates", handle)
        if joules is None and watts is None and load is None:
            return None
        milli = [None if each is None else each / 1000 for each in (joules, watts)]
        return Reading(uuid, milli[0], milli[1], None if load is None else load.gpu / 100)

    def _ask(self, function: str, handle: Any) -> Any:
        try:
            return getattr(self._nvml, function)(handle)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def _visible(self) -> list[tuple[str, Any]]:
        count = self._nvml.nvmlDeviceGetCount()
        handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        named = [(_text(self._nvml.nvmlDeviceGetUUID(handle)), handle) for handle in handles]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return named
        wanted = []
        for word in (part.strip() for part in visible.split(",")):
            if word.startswith("GPU-"):
                wanted += [each for each in named if each[0].startswith(word)]
            elif word.isdigit() and int(word) < count:
                wanted.append(named[int(word)])
        return wanted


class AMD:
    """The amdgpu driver's sensors in sysfs: power, and load. They have no counter of energy."""

    name = "amdgpu sensors"

    def __init__(self, root: Path = Path("/sys/class/drm")) -> None:
        """Raises OSError where there is no such card."""
        self._cards = []
        for device in sorted(root.glob("card[0-9]*/device")):
            power = next(
                iter(sorted([*device.glob("hwmon/hwmon*/power1_average"), *device.glob("hwmon/hwmon*/power1_input")])),
                None,
            )
            if power is not None and _read(device / "vendor") == "0x1002":
                self._cards.append((device, power))
        if not self._cards:
            raise OSError(f"no card of AMD with a power sensor below {root}")

    def read(self) -> Sequence[Reading]:
        """Read all cards."""
        found = []
        for device, power in self._cards:
            watts, load = _number(power), _number(device / "gpu_busy_percent")
            if watts is not None or load is not None:
                name = _read(device / "unique_id") or device.parent.name
                found.append(
                    Reading(name, None, None if watts is None else watts / 1e6, None if load is None else load / 100)
                )
        return found


def find() -> Source | None:
    """The first source that this machine has; None without cards."""
    for kind in (NVML, AMD):
        try:
            return kind()
        except (ImportError, OSError):
            continue
    return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.isdigit() else None
