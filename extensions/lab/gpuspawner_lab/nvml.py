"""Readings of this session's cards from the driver (NVML). Blocking: call from a worker thread.

Inside a session the driver's library is the limit's own: it reports the memory allowed as the
total and the session's memory as used. Simulated cards are read the same way.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

#: Seconds to wait before the driver's library is tried again after it could not be started.
RETRY_SECONDS = 5.0


class NVMLUnavailable(RuntimeError):
    """No readings can be had; the message is a sentence for people."""


@dataclass(frozen=True)
class CardReading:
    """One card now. What the driver does not know is None."""

    uuid: str | None
    name: str | None
    memory_used_bytes: int | None
    memory_allowed_bytes: int | None
    utilization_percent: int | None
    power_watts: float | None
    temperature_celsius: int | None
    energy_joules: float | None = None
    """Since the driver was loaded, by the whole card."""
    processes: tuple[tuple[int, int | None], ...] | None = None
    """Pid and bytes of each process of this session; None where they were not asked for or are not known."""


class NVMLReader:
    """Keeps NVML open between readings and opens it again when the driver went away."""

    def __init__(self, nvml: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._open = False
        self._known: dict[int, tuple[Any, str | None, str | None]] = {}  # by index: handle, uuid, name
        self._reason = ""
        self._retry_at = float("-inf")

    def read(self, uuids: Collection[str] | None = None, processes: bool = False) -> list[CardReading]:
        """Read the cards with these UUIDs, or every visible card if none is named; with their processes if wanted.

        A session that has a slice of a card (MIG) sees that alone, by the name in its environment.
        Raises `NVMLUnavailable` with the reason when there is no driver, or none of these cards.
        """
        nvml = self._library()
        try:
            count = nvml.nvmlDeviceGetCount()
            known = [self._by_index(nvml, index) for index in range(count)]
            # Slices are in no list of cards, and the service names the card that they are cut from.
            slices = [self._named(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid.encode())) for uuid in _slices()]
            # A card of somebody else's is never shown in place of this session's.
            own = [*(each for each in known if not uuids or each[1] in uuids), *slices]
            cards = [self._card(nvml, *each, processes) for each in own]
        except nvml.NVMLError as error:
            # A restarted driver (or simulated one) needs a new start of the library.
            self.close()
            raise NVMLUnavailable(f"The driver does not answer: {error}.") from error
        if not known and not slices:
            raise NVMLUnavailable("The driver shows no card to this session.")
        if not cards:
            raise NVMLUnavailable("The driver does not show this session's card.")
        return cards

    def close(self) -> None:
        """Shut NVML down; the next reading opens it again."""
        if self._open:
            self._open = False
            self._known.clear()
            # An error means it is gone already, which is what was asked for.
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _library(self) -> Any:
        if self._open:
            return self._nvml
        if self._clock() < self._retry_at:
            raise NVMLUnavailable(self._reason)
        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
        except ImportError as error:
            self._fail("nvidia-ml-py is not installed, so the driver cannot be read.", error)
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            self._fail(f"No NVIDIA driver can be read here: {error}.", error)
        self._open = True
        return self._nvml

    def _fail(self, reason: str, error: Exception) -> None:
        self._reason = reason
        self._retry_at = self._clock() + RETRY_SECONDS
        raise NVMLUnavailable(reason) from error

    def _by_index(self, nvml: Any, index: int) -> tuple[Any, str | None, str | None]:
        """A card's handle, uuid and name, asked for once: they last as long as the library is open."""
        if index not in self._known:
            found = self._named(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
            if None in found:
                return found
            self._known[index] = found
        return self._known[index]

    @staticmethod
    def _named(nvml: Any, handle: Any) -> tuple[Any, str | None, str | None]:
        return (
            handle,
            _text(_ask(nvml, nvml.nvmlDeviceGetUUID, handle)),
            _text(_ask(nvml, nvml.nvmlDeviceGetName, handle)),
        )

    @staticmethod
    def _card(nvml: Any, handle: Any, uuid: str | None, name: str | None, processes: bool) -> CardReading:
        memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        load = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        milliwatts = _ask(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
        millijoules = _ask(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        running = _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) if processes else None
        return CardReading(
            uuid=uuid,
            name=name,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_allowed_bytes=None if memory is None else int(memory.total),
            utilization_percent=None if load is None else int(load.gpu),
            power_watts=None if milliwatts is None else round(milliwatts / 1000, 1),
            temperature_celsius=_ask(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            energy_joules=None if millijoules is None else round(millijoules / 1000, 1),
            processes=None if running is None else tuple((int(one.pid), one.usedGpuMemory) for one in running),
        )


def _slices() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [uuid for uuid in visible if uuid.startswith("MIG-")]


def _ask(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """What the driver says; None where it does not know."""
    try:
        return function(*arguments)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_Unknown, nvml.NVMLError_NoPermission):
        return None
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_InvalidArgument):
        return None


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
