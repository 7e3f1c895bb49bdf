"""Readings of this session's cards from the driver (NVML). Blocking: call from a worker thread.

Inside a session the driver's library is the limit's own: it reports the memory allowed as the
total and the session's memory as used. Simulated cards are read the same way.
"""

from __future__ import annotations

import contextlib
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


class NVMLReader:
    """Keeps NVML open between readings and opens it again when the driver went away."""

    def __init__(self, nvml: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._open = False
        self._reason = ""
        self._retry_at = float("-inf")

    def read(self, uuids: Collection[str] | None = None) -> list[CardReading]:
        """Read the cards with these UUIDs, or every visible card if None or none of them is seen.

        Raises `NVMLUnavailable` with the reason when there is no driver or no card.
        """
        nvml = self._library()
        try:
            count = nvml.nvmlDeviceGetCount()
            cards = [self._card(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
        except nvml.NVMLError as error:
            # A restarted driver (or simulated one) needs a new start of the library.
            self.close()
            raise NVMLUnavailable(f"The driver does not answer: {error}.") from error
        if not cards:
            raise NVMLUnavailable("The driver shows no card to this session.")
        wanted = set(uuids or ())
        return [card for card in cards if card.uuid in wanted] or cards

    def close(self) -> None:
        """Shut NVML down; the next reading opens it again."""
        if self._open:
            self._open = False
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

    @staticmethod
    def _card(nvml: Any, handle: Any) -> CardReading:
        def ask(function: Callable[..., Any], *arguments: Any) -> Any:
            try:
                return function(handle, *arguments)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_Unknown, nvml.NVMLError_NoPermission):
                return None
            except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_InvalidArgument):
                return None

        def text(value: Any) -> str | None:
            return value.decode(errors="replace") if isinstance(value, bytes) else value

        memory = ask(nvml.nvmlDeviceGetMemoryInfo)
        load = ask(nvml.nvmlDeviceGetUtilizationRates)
        milliwatts = ask(nvml.nvmlDeviceGetPowerUsage)
        return CardReading(
            uuid=text(ask(nvml.nvmlDeviceGetUUID)),
            name=text(ask(nvml.nvmlDeviceGetName)),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_allowed_bytes=None if memory is None else int(memory.total),
            utilization_percent=None if load is None else int(load.gpu),
            power_watts=None if milliwatts is None else round(milliwatts / 1000, 1),
            temperature_celsius=ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        )
