"""A stand-in for the module `amdsmi`: its functions' names, arguments, units and errors, and cards that nobody has.

No AMD card was at hand. It follows AMD's published Python API and says "N/A" where that does.
"""

from __future__ import annotations

import json
import os
import types
from enum import IntEnum
from pathlib import Path
from typing import Any

UUIDS = ("17ff74a1-0000-1000-80f5-0d4f5e1a2b3c", "17ff74a1-0000-1000-80f5-0d4f5e1a2b3d")
SERIALS = ("0x80F50D4F5E1A2B3C", "0x80F50D4F5E1A2B3D")
ADDRESSES = ("0000:c1:00.0", "0000:c2:00.0")


class StandIn(types.ModuleType):
    """Stands in for `amdsmi`: MI300X cards with opaque handles. `processes`: by card, bytes by process; a file that
    GPUSPAWNER_TEST_AMD names may say them (JSON), where the module is used in another process."""

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

    def __init__(self, count: int = 1) -> None:
        super().__init__("amdsmi")
        self.handles = [object() for _ in range(count)]
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
        self.activity: dict[str, Any] = {"gfx_activity": 87, "umc_activity": 20, "mm_activity": "N/A"}
        self.processes: list[dict[str, Any]] = [{"41": 3 << 30, "42": "N/A"}]

    def _number(self, handle: object) -> int:
        if handle not in self.handles:
            raise self.AmdSmiException("Invalid argument")
        return self.handles.index(handle)

    def amdsmi_init(self) -> None:
        if self.init_error:
            raise self.init_error
        self.opened += 1

    def amdsmi_shut_down(self) -> None:
        self.opened -= 1

    def amdsmi_get_processor_handles(self) -> list[object]:
        return self.handles

    def amdsmi_get_gpu_device_uuid(self, handle: object) -> str:
        return UUIDS[self._number(handle)]

    def amdsmi_get_gpu_device_bdf(self, handle: object) -> str:
        return ADDRESSES[self._number(handle)]

    def amdsmi_get_gpu_asic_info(self, handle: object) -> dict[str, Any]:
        serial = SERIALS[self._number(handle)]
        return {"market_name": "AMD Instinct MI300X", "vendor_id": "0x1002", "asic_serial": serial}

    def amdsmi_get_gpu_vram_usage(self, handle: object) -> dict[str, Any]:
        self._number(handle)
        return {"vram_total": 196592, "vram_used": 285}

    def amdsmi_get_gpu_process_list(self, handle: object) -> list[dict[str, Any]]:
        number = self._number(handle)
        said = os.environ.get("GPUSPAWNER_TEST_AMD")
        processes = json.loads(Path(said).read_text()) if said else self.processes
        return [
            {"name": "N/A", "pid": int(pid), "mem": used, "memory_usage": {"gtt_mem": 0, "vram_mem": used}}
            for pid, used in (processes[number] if number < len(processes) else {}).items()
        ]

    def amdsmi_get_temp_metric(self, handle: object, sensor: int, metric: int) -> Any:
        self._number(handle)
        value = self.temperatures.get((sensor, metric))
        if value is None:
            raise self.AmdSmiException("Feature is not supported on the current device.")
        return value

    def amdsmi_get_power_info(self, handle: object) -> dict[str, Any]:
        self._number(handle)
        return self.power

    def amdsmi_get_gpu_activity(self, handle: object) -> dict[str, Any]:
        self._number(handle)
        return self.activity

    def amdsmi_get_gpu_total_ecc_count(self, handle: object) -> dict[str, Any]:
        self._number(handle)
        return self.ecc
