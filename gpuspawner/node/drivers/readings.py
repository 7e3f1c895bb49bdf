"""What NVML tells of one card, as `health.Readings`: a reading that it does not support is None, never 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from gpuspawner.node.health import Readings

T = TypeVar("T")


def read(handle: Any, xids: tuple[int, ...]) -> Readings:
    """The readings of a card now. Raises NVMLError where the card as a whole does not answer (lost, no driver)."""
    _maybe(pynvml.nvmlDeviceGetMemoryInfo, handle)  # whether it answers at all
    rows = _maybe(pynvml.nvmlDeviceGetRemappedRows, handle)
    utilization = _maybe(pynvml.nvmlDeviceGetUtilizationRates, handle)
    retired = _maybe(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    return Readings(
        temperature=_maybe(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        slowdown_at=_threshold(handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        shutdown_at=_threshold(handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
        memory_temperature=_memory_temperature(handle),
        memory_temperature_most=_threshold(handle, pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
        power_mw=_maybe(pynvml.nvmlDeviceGetPowerUsage, handle),
        power_limit_mw=_maybe(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        utilization_percent=None if utilization is None else int(utilization.gpu),
        ecc_corrected=_ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc_uncorrected=_ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        remap_pending=None if rows is None else bool(rows[2]),
        remap_failed=None if rows is None else bool(rows[3]),
        retired_pending=None if retired is None else bool(retired),
        throttle_reasons=_maybe(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
        xids=xids,
    )


def _maybe(call: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return call(*arguments)
    except (
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_FunctionNotFound,
        pynvml.NVMLError_InvalidArgument,
        pynvml.NVMLError_NoPermission,
        pynvml.NVMLError_NoData,
        pynvml.NVMLError_Unknown,
    ):
        return None


def _threshold(handle: Any, which: int) -> int | None:
    return _maybe(pynvml.nvmlDeviceGetTemperatureThreshold, handle, which)


def _ecc(handle: Any, kind: int) -> int | None:
    return _maybe(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)


def _memory_temperature(handle: Any) -> int | None:
    values = _maybe(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal) or None  # boards without such a sensor answer 0
