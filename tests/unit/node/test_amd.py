"""AMD cards, against a FAKE of the module `amdsmi`: its functions' names, arguments, units and errors, and no card.

No AMD card was at hand. The fake follows AMD's published Python API and says "N/A" where that does.
"""

from __future__ import annotations

import sys
import types
from enum import IntEnum
from typing import Any

import pytest

from gpuspawner.node.drivers.amd import AMDDriver
from gpuspawner.node.drivers.nvml import DriverError
from gpuspawner.node.health import assess

UUID = "17ff74a1-0000-1000-80f5-0d4f5e1a2b3c"


class FakeSmi(types.ModuleType):
    """Stands in for `amdsmi`: one MI300X, handles are opaque."""

    class AmdSmiException(Exception):
        pass

    class AmdSmiTemperatureType(IntEnum):
        EDGE = 0
        HOTSPOT = 1
        VRAM = 2

    class AmdSmiTemperatureMetric(IntEnum):
        CURRENT = 0
        CRITICAL = 5
        EMERGENCY = 7

    def __init__(self) -> None:
        super().__init__("amdsmi")
        self.handle = object()
        self.opened = 0
        self.init_error: Exception | None = None
        self.temperatures: dict[tuple[int, int], Any] = {
            (1, 0): 62,
            (1, 5): 100,
            (1, 7): 105,
            (2, 0): 55,
            (2, 5): 105,
        }
        self.power: dict[str, Any] = {"current_socket_power": 143, "average_socket_power": "N/A", "power_limit": 750}
        self.ecc: dict[str, Any] = {"correctable_count": 3, "uncorrectable_count": 0, "deferred_count": 0}

    def _check(self, handle: object) -> None:
        if handle is not self.handle:
            raise self.AmdSmiException("Invalid argument")

    def amdsmi_init(self) -> None:
        if self.init_error:
            raise self.init_error
        self.opened += 1

    def amdsmi_shut_down(self) -> None:
        self.opened -= 1

    def amdsmi_get_processor_handles(self) -> list[object]:
        return [self.handle]

    def amdsmi_get_gpu_device_uuid(self, handle: object) -> str:
        self._check(handle)
        return UUID

    def amdsmi_get_gpu_asic_info(self, handle: object) -> dict[str, Any]:
        self._check(handle)
        return {"market_name": "AMD Instinct MI300X", "vendor_id": "0x1002", "asic_serial": "0xABCD"}

    def amdsmi_get_gpu_vram_usage(self, handle: object) -> dict[str, Any]:
        self._check(handle)
        return {"vram_total": 196592, "vram_used": 285}

    def amdsmi_get_gpu_process_list(self, handle: object) -> list[dict[str, Any]]:
        self._check(handle)
        memory = {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": 3 << 30}
        return [
            {"name": "python", "pid": 41, "mem": 3 << 30, "memory_usage": memory},
            {"name": "N/A", "pid": 42, "mem": "N/A", "memory_usage": {"vram_mem": "N/A"}},
        ]

    def amdsmi_get_temp_metric(self, handle: object, sensor: int, metric: int) -> Any:
        self._check(handle)
        value = self.temperatures.get((sensor, metric))
        if value is None:
            raise self.AmdSmiException("Feature is not supported on the current device.")
        return value

    def amdsmi_get_power_info(self, handle: object) -> dict[str, Any]:
        self._check(handle)
        return self.power

    def amdsmi_get_gpu_activity(self, handle: object) -> dict[str, Any]:
        self._check(handle)
        return {"gfx_activity": 87, "umc_activity": 20, "mm_activity": "N/A"}

    def amdsmi_get_gpu_total_ecc_count(self, handle: object) -> dict[str, Any]:
        self._check(handle)
        return self.ecc


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> FakeSmi:
    fake = FakeSmi()
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    return fake


def test_inventory(smi: FakeSmi) -> None:
    driver = AMDDriver()
    (card,) = driver.cards()
    assert card.uuid == f"GPU-{UUID}"
    assert card.model == "mi300x-192gb"
    assert card.memory_bytes == 196592 << 20
    assert not card.simulated
    assert driver.used_bytes(card.uuid) == {41: 3 << 30, 42: None}
    driver.close()
    assert smi.opened == 0


def test_telemetry_and_health(smi: FakeSmi) -> None:
    driver = AMDDriver()
    uuid = driver.cards()[0].uuid
    read = driver.readings(uuid)
    assert (read.temperature, read.slowdown_at, read.shutdown_at) == (62, 100, 105)
    assert (read.power_mw, read.power_limit_mw, read.utilization_percent) == (143_000, 750_000, 87)
    assert (read.ecc_corrected, read.ecc_uncorrected) == (3, 0)
    assert assess(read).state == "ok"
    smi.temperatures[1, 0] = 101
    assert assess(driver.readings(uuid)).state == "warning"


def test_what_the_card_does_not_tell_is_none(smi: FakeSmi) -> None:
    driver = AMDDriver()
    uuid = driver.cards()[0].uuid
    smi.temperatures.clear()
    smi.power = {"current_socket_power": "N/A", "power_limit": 750_000_000}
    smi.ecc = {}
    read = driver.readings(uuid)
    assert (read.temperature, read.power_mw, read.ecc_uncorrected) == (None, None, None)
    assert read.power_limit_mw == 750_000
    assert assess(read).state == "ok"


def test_without_library_driver_or_card_there_is_a_reason(smi: FakeSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    smi.init_error = smi.AmdSmiException("Driver not loaded")
    with pytest.raises(DriverError, match="Driver not loaded"):
        AMDDriver().cards()
    assert assess(AMDDriver().readings("GPU-none")).state == "unknown"
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(DriverError, match="amdsmi is not installed"):
        AMDDriver().cards()
