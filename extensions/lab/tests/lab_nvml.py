"""A driver's library in Python, with the calls that the reader makes. For faults that no driver shows on demand."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from gpuspawner_lab.nvml import NVMLReader


class NVMLError(Exception):
    """As pynvml's."""


class NVMLError_NotSupported(NVMLError):
    """As pynvml's."""


class NVMLError_Unknown(NVMLError):
    """As pynvml's."""


class NVMLError_NoPermission(NVMLError):
    """As pynvml's."""


class NVMLError_FunctionNotFound(NVMLError):
    """As pynvml's."""


class NVMLError_InvalidArgument(NVMLError):
    """As pynvml's."""


class FakeNVML:
    """Cards as dictionaries; a value that is an exception is raised."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_Unknown = NVMLError_Unknown
    NVMLError_NoPermission = NVMLError_NoPermission
    NVMLError_FunctionNotFound = NVMLError_FunctionNotFound
    NVMLError_InvalidArgument = NVMLError_InvalidArgument
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *cards: dict[str, Any]) -> None:
        self.cards = list(cards)
        self.slices: list[dict[str, Any]] = []
        self.init_error: Exception | None = None
        self.count_error: Exception | None = None
        self.inits = 0

    def nvmlInit(self) -> None:
        self.inits += 1
        if self.init_error:
            raise self.init_error

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        if self.count_error:
            raise self.count_error
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> dict[str, Any]:
        return next(card for card in self.slices if card["uuid"] == uuid.decode())

    @staticmethod
    def _get(card: dict[str, Any], key: str) -> Any:
        value = card[key]
        if isinstance(value, Exception):
            raise value
        return value

    def nvmlDeviceGetUUID(self, card: dict[str, Any]) -> Any:
        return self._get(card, "uuid")

    def nvmlDeviceGetName(self, card: dict[str, Any]) -> Any:
        return self._get(card, "name")

    def nvmlDeviceGetMemoryInfo(self, card: dict[str, Any]) -> Any:
        used, total = self._get(card, "memory")
        return SimpleNamespace(used=used, total=total, free=total - used)

    def nvmlDeviceGetUtilizationRates(self, card: dict[str, Any]) -> Any:
        return SimpleNamespace(gpu=self._get(card, "load"), memory=0)

    def nvmlDeviceGetPowerUsage(self, card: dict[str, Any]) -> Any:
        return self._get(card, "milliwatts")

    def nvmlDeviceGetTemperature(self, card: dict[str, Any], sensor: int) -> Any:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return self._get(card, "celsius")

    def nvmlDeviceGetTotalEnergyConsumption(self, card: dict[str, Any]) -> Any:
        return self._get(card, "millijoules")

    def nvmlDeviceGetComputeRunningProcesses(self, card: dict[str, Any]) -> Any:
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self._get(card, "processes")]


def card(**changes: Any) -> dict[str, Any]:
    """A card in good health."""
    known = {
        "uuid": "GPU-00000000-0000-0000-0000-000000000001",
        "name": "NVIDIA H100 80GB HBM3 (simulated)",
        "memory": (3 * 2**30, 20 * 2**30),
        "load": 12,
        "milliwatts": 71_234,
        "celsius": 34,
        "millijoules": 5_000_000,
        "processes": [(os.getpid(), 3 * 2**30)],
    }
    return {**known, **changes}


class ScriptedReader(NVMLReader):
    """A reader of one healthy card, for servers that run as processes of their own."""

    def __init__(self) -> None:
        super().__init__(FakeNVML(card()))
