"""AMD cards, read through AMD's own library `amdsmi` where it is installed: inventory and telemetry, of whole cards.

Fractions of AMD cards do not exist here yet. `amdsmi` comes with ROCm and is imported at first use. What it cannot tell
it answers with the text "N/A" or an exception; both become None.
Source of names, units and types: AMD SMI Python API (rocm.docs.amd.com/projects/amdsmi).
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from gpuspawner.card import Card
from gpuspawner.node.drivers.nvml import DriverError
from gpuspawner.node.health import Readings

MIB = 1 << 20


class AMDDriver:
    """One machine's AMD cards. Every method but `readings` raises DriverError when the driver does not answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._smi: Any = None
        self._handles: dict[str, Any] = {}

    def cards(self) -> list[Card]:
        """All AMD cards of this machine, in the library's order."""
        with self._lock:
            smi = self._open()
            try:
                found = []
                for index, handle in enumerate(smi.amdsmi_get_processor_handles()):
                    uuid = f"GPU-{smi.amdsmi_get_gpu_device_uuid(handle)}"
                    name = smi.amdsmi_get_gpu_asic_info(handle)["market_name"]
                    total = _number(smi.amdsmi_get_gpu_vram_usage(handle)["vram_total"])
                    if total is None:
                        raise DriverError(f"The driver does not say how much memory the card {uuid} has.")
                    found.append(Card(uuid=uuid, index=index, name=str(name), memory_bytes=total * MIB))
                    self._handles[uuid] = handle
            except smi.AmdSmiException as error:
                raise DriverError(f"The driver of the AMD cards does not answer: {_text(error)}.") from error
            return found

    def used_bytes(self, uuid: str) -> dict[int, int | None]:
        """Bytes in use on a card by process id; None where the library knows the process but not how much."""
        with self._lock:
            smi, handle = self._card(uuid)
            try:
                processes = smi.amdsmi_get_gpu_process_list(handle)
            except smi.AmdSmiException as error:
                raise DriverError(f"The driver of card {uuid} does not answer: {_text(error)}.") from error
        return {int(each["pid"]): _number(each.get("memory_usage", {}).get("vram_mem")) for each in processes}

    def readings(self, uuid: str, xids: tuple[int, ...] = ()) -> Readings:
        """What the driver tells of a card's health; AMD cards report no XID codes, so that `xids` stays empty."""
        del xids
        with self._lock:
            try:
                smi, handle = self._card(uuid)
            except DriverError:
                return Readings(answers=False)
            kind, metric = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric
            power = _maybe(smi, smi.amdsmi_get_power_info, handle) or {}
            activity = _maybe(smi, smi.amdsmi_get_gpu_activity, handle) or {}
            errors = _maybe(smi, smi.amdsmi_get_gpu_total_ecc_count, handle) or {}
            watts, watts_limit = _number(power.get("current_socket_power")), _number(power.get("power_limit"))
            return Readings(
                answers=_maybe(smi, smi.amdsmi_get_gpu_vram_usage, handle) is not None,
                temperature=_temperature(smi, handle, kind.HOTSPOT, metric.CURRENT),
                slowdown_at=_temperature(smi, handle, kind.HOTSPOT, metric.CRITICAL),
                shutdown_at=_temperature(smi, handle, kind.HOTSPOT, metric.EMERGENCY),
                memory_temperature=_temperature(smi, handle, kind.VRAM, metric.CURRENT),
                memory_temperature_most=_temperature(smi, handle, kind.VRAM, metric.CRITICAL),
                power_mw=None if watts is None else watts * 1000,
                power_limit_mw=None if watts_limit is None else _milliwatts(watts_limit),
                utilization_percent=_number(activity.get("gfx_activity")),
                ecc_corrected=_number(errors.get("correctable_count")),
                ecc_uncorrected=_number(errors.get("uncorrectable_count")),
            )

    def close(self) -> None:
        """Let go of the library."""
        with self._lock:
            if self._smi is not None:
                self._smi.amdsmi_shut_down()
                self._smi = None
                self._handles.clear()

    def _open(self) -> Any:
        if self._smi is None:
            try:
                smi = importlib.import_module("amdsmi")
            except (ImportError, OSError, KeyError) as error:
                # KeyError: the library's way of saying that ROCm is not where it looked
                raise DriverError(f"The library amdsmi is not installed or cannot be loaded: {error}.") from error
            try:
                smi.amdsmi_init()
            except smi.AmdSmiException as error:
                raise DriverError(f"The driver of the AMD cards does not answer: {_text(error)}.") from error
            self._smi = smi
        return self._smi

    def _card(self, uuid: str) -> tuple[Any, Any]:
        smi = self._open()
        if uuid not in self._handles:
            raise DriverError(f"There is no AMD card {uuid} on this machine.")
        return smi, self._handles[uuid]


def _maybe(smi: Any, call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except smi.AmdSmiException:
        return None


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _milliwatts(limit: int) -> int:
    """The limit comes in watts or, from newer libraries, in microwatts; no card takes 10,000 W."""
    return limit * 1000 if limit < 10_000 else limit // 1000


def _temperature(smi: Any, handle: Any, sensor: Any, metric: Any) -> int | None:
    """Degrees Celsius."""
    return _number(_maybe(smi, smi.amdsmi_get_temp_metric, handle, sensor, metric))


def _text(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip() if str(error).strip() else type(error).__name__
