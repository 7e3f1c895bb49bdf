"""AMD cards, read through AMD's own library `amdsmi` where it is installed: inventory, telemetry, and how programs
reach them. They are given out whole.

`amdsmi` comes with ROCm and is imported at first use. What it cannot tell it answers with the text "N/A" or an
exception; both become None. Sources: AMD SMI Python API (rocm.docs.amd.com/projects/amdsmi) for names, units and types;
"GPU isolation techniques" (rocm.docs.amd.com) for variables; Linux, Documentation/gpu/drm-uapi.rst, for render nodes.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from gpuspawner.card import Card
from gpuspawner.node.drivers.base import Access, DriverError, Sample
from gpuspawner.node.drivers.patience import Patience
from gpuspawner.node.health import Readings

T = TypeVar("T")
MIB = 1 << 20
ONLY_WHOLE = "Fractions of AMD cards do not exist here yet: the card is only given out whole."
#: Through this file programs reach the compute side of all AMD cards.
KFD = "kfd"


def installed() -> bool:
    """Whether the library is there."""
    return "amdsmi" in sys.modules or importlib.util.find_spec("amdsmi") is not None


class AMDDriver:
    """One machine's AMD cards (`base.Driver`). `dev` and `sysfs` are the machine's."""

    cuda_library: Path | None = None
    nvml_library: Path | None = None

    def __init__(self, patience: Patience | None = None, dev: Path = Path("/dev"), sysfs: Path = Path("/sys")) -> None:
        self._patience = patience or Patience("The driver of the AMD cards")
        self._dev = dev
        self._sysfs = sysfs
        self._smi: Any = None
        self._handles: dict[str, Any] = {}
        self._names: dict[str, str] = {}  # by which ROCm's programs know each card
        self._files: dict[str, tuple[Path, ...]] = {}

    def cards(self) -> list[Card]:
        """All AMD cards of this machine, in the library's order."""

        def read(smi: Any) -> list[Card]:
            found = []
            for index, handle in enumerate(smi.amdsmi_get_processor_handles()):
                uuid = f"GPU-{smi.amdsmi_get_gpu_device_uuid(handle)}"
                asic = smi.amdsmi_get_gpu_asic_info(handle)
                total = _number(smi.amdsmi_get_gpu_vram_usage(handle)["vram_total"])
                if total is None:
                    raise DriverError(f"The driver does not say how much memory the card {uuid} has.")
                found.append(Card(uuid, index, str(asic["market_name"]), total * MIB))
                self._handles[uuid] = handle
                self._names[uuid] = _rocm_name(smi, handle, asic) or str(index)
                self._files[uuid] = self._nodes(str(_maybe(smi, smi.amdsmi_get_gpu_device_bdf, handle)))
            return found

        return self._ask(read, "The driver of the AMD cards")

    def missing(self) -> bool:
        """Not known: the library lists what there is."""
        return False

    def only_whole(self, uuid: str) -> str | None:
        """Every card."""
        return ONLY_WHOLE

    def access(self, uuids: Collection[str]) -> Access:
        """By ROCR_VISIBLE_DEVICES, which hides all others from everything on ROCm, and HIP_VISIBLE_DEVICES, which
        counts what that leaves. HIP heeds it before CUDA_VISIBLE_DEVICES, which is for NVIDIA's cards."""
        mine = [uuid for uuid in self._handles if uuid in uuids]
        own = {path for uuid in mine for path in self._files[uuid]}
        all_ = {path for files in self._files.values() for path in files}
        if (self._dev / KFD).exists():
            all_.add(self._dev / KFD)
            own |= {self._dev / KFD} if mine else set()
        env = {
            "ROCR_VISIBLE_DEVICES": ",".join(self._names[uuid] for uuid in mine) or "-1",
            "HIP_VISIBLE_DEVICES": ",".join(str(number) for number in range(len(mine))) or "-1",
        }
        return Access(frozenset(mine), env, tuple(sorted(own)), tuple(sorted(all_ - own)))

    def used_bytes(self, uuid: str) -> dict[int, int | None]:
        """Bytes in use on a card by process id; None where the library knows the process but not how much."""
        processes = self._of_card(uuid, lambda smi, handle: list(smi.amdsmi_get_gpu_process_list(handle)))
        return {int(each["pid"]): _number(each.get("memory_usage", {}).get("vram_mem")) for each in processes}

    def samples(self, uuid: str) -> list[Sample]:
        """Never: the library has no figures of compute by process. Raises DriverError."""
        raise DriverError("AMD's library says of no process how much it computes.")

    def idle(self, uuid: str) -> bool | None:
        """Whether the card computes nothing now."""
        activity = self._of_card(uuid, lambda smi, handle: _maybe(smi, smi.amdsmi_get_gpu_activity, handle)) or {}
        percent = _number(activity.get("gfx_activity"))
        return None if percent is None else percent == 0

    def readings(self, uuid: str, xids: tuple[int, ...] = ()) -> Readings:
        """What the driver tells of a card's health; AMD cards report no XID codes, so that `xids` stays empty."""
        del xids
        try:
            return self._of_card(uuid, _readings)
        except DriverError:
            return Readings(answers=False)

    def new_xids(self) -> list[tuple[str, int]]:
        """None: XID codes are NVIDIA's."""
        return []

    def with_card(self, uuid: str, do: Callable[[Any], T], late: Callable[[T], object] | None = None) -> T:
        """There is no NVML handle for an AMD card. Raises DriverError."""
        raise DriverError(f"The card {uuid} is an AMD card; it has no NVML.")

    def close(self) -> None:
        """Let go of the library."""

        def close() -> None:
            if self._smi is not None:
                self._smi.amdsmi_shut_down()
                self._smi = None
                self._handles.clear()

        self._patience.call(close)

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

    def _ask(self, do: Callable[[Any], T], who: str) -> T:
        def ask() -> T:
            smi = self._open()
            try:
                return do(smi)
            except smi.AmdSmiException as error:
                raise DriverError(f"{who} does not answer: {_text(error)}.") from error

        return self._patience.call(ask)

    def _of_card(self, uuid: str, do: Callable[[Any, Any], T]) -> T:
        def ask(smi: Any) -> T:
            if uuid not in self._handles:
                raise DriverError(f"There is no AMD card {uuid} on this machine.")
            return do(smi, self._handles[uuid])

        return self._ask(ask, f"The driver of card {uuid}")

    def _nodes(self, address: str) -> tuple[Path, ...]:
        """The device files of the card at a PCI address, those that there are."""
        folder = self._sysfs / "bus" / "pci" / "devices" / address / "drm"
        names = sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []
        files = [self._dev / "dri" / name for name in names if name.startswith(("card", "renderD"))]
        return tuple(file for file in files if file.exists())


def _readings(smi: Any, handle: Any) -> Readings:
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


def _rocm_name(smi: Any, handle: Any, asic: dict[str, Any]) -> str | None:
    """The card's name for ROCR_VISIBLE_DEVICES, "GPU-" and digits: as newer libraries say it, else from the serial."""
    ask = getattr(smi, "amdsmi_get_gpu_enumeration_info", None)
    known = (_maybe(smi, ask, handle) or {}).get("hip_uuid") if ask else None
    if isinstance(known, str) and known.startswith("GPU-"):
        return known
    try:
        return f"GPU-{int(str(asic.get('asic_serial')), 16):016x}"
    except ValueError:
        return None


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
