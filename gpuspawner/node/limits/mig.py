"""MIG: a card that its driver cuts into slices. A share maps to the profile with the share's part of the memory.

A card has eight memory slices and seven compute slices, so that the two parts differ (NVIDIA, MIG User Guide):

| share | profile of an 80 GB card | memory | compute | at most |
|---|---|---|---|---|
| 1/8 | 1g.10gb | 1/8 | 1/7 | 7 |
| 1/4 | 2g.20gb | 2/8 | 2/7 | 3 |
| 1/2 | 3g.40gb | 4/8 | 3/7 | 2 |
| 1 | 7g.80gb | 8/8 | 7/7 | 1 |

The mode itself is never changed here: that resets the card, and is the administrator's (`nvidia-smi -mig 1`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from ctypes import byref, c_uint
from pathlib import Path
from typing import Any

import pynvml

from gpuspawner.card import Card
from gpuspawner.errors import GPUSpawnerError, NoRoom, Unavailable
from gpuspawner.node.drivers.base import Driver
from gpuspawner.node.limits.enforcer import Name, Place, Resize
from gpuspawner.share import FRACTIONS, eighths_text

log = logging.getLogger(__name__)

#: NVML_GPU_INSTANCE_PROFILE_* and NVML_COMPUTE_INSTANCE_PROFILE_* of each share.
PROFILES: dict[int, int] = {
    1: pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE,
    2: pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE,
    4: pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE,
    8: pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE,
}
_FILE = "mig.json"


class MigSlices:
    """Slices of one card in MIG mode.

    `folders` is where each session has a folder of the node's own. Its slice is written down there before it is used,
    so that the next agent finds it again.
    """

    name: Name = "mig"
    resize: Resize = "restart"
    only_whole: str | None = None

    def __init__(self, card: Card, driver: Driver, folders: Path, *, kernel: bool) -> None:
        self._card = card
        self._driver = driver
        self._folders = folders
        self.kernel = kernel

    def allows(self, eighths: int) -> bool:
        """Every fraction has its profile."""
        return eighths in PROFILES

    def fits(self, taken: Sequence[int]) -> Mapping[int, int]:
        """What the driver says: it depends on where the slices lie, not on how many eighths they are."""

        def ask(handle: Any) -> dict[int, int]:
            found = {}
            for eighths in FRACTIONS:
                profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, PROFILES[eighths])
                found[eighths] = int(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, profile.id))
            return found

        try:
            fits: dict[int, int] = self._driver.with_card(self._card.uuid, ask)
        except GPUSpawnerError as error:
            log.warning("%s", error)
            return dict.fromkeys(FRACTIONS, 0)
        return fits

    def take(self, session: str, eighths: int) -> Place:
        """The session's slice: the one it has, or a new one."""
        known = self._read(session)
        if known is not None:
            return Place(str(known["uuid"]), int(known["memory_bytes"]))
        try:
            made = self._driver.with_card(
                self._card.uuid, lambda handle: self._cut(handle, eighths), late=self._not_wanted
            )
        except GPUSpawnerError as error:
            if not isinstance(error.__cause__, pynvml.NVMLError_InsufficientResources):
                raise
            raise NoRoom(
                f"The card is cut into slices, and none for {eighths_text(eighths)} fits beside those that are there. "
                "A card holds seven of 1/8, three of 1/4 or two of 1/2.",
                field="share",
            ) from error
        try:
            self._write(session, made)
        except OSError as error:
            self._driver.with_card(self._card.uuid, lambda handle: _destroy(handle, int(made["gpu_instance"])))
            raise Unavailable(f"The slice could not be written down: {error}.", code="storage") from error
        return Place(str(made["uuid"]), int(made["memory_bytes"]))

    def _not_wanted(self, made: dict[str, Any]) -> None:
        """The driver made it too late: nobody knows of it."""
        _destroy(pynvml.nvmlDeviceGetHandleByUUID(self._card.uuid), int(made["gpu_instance"]))

    def _cut(self, handle: Any, eighths: int) -> dict[str, Any]:
        number = PROFILES[eighths]
        profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
        gpu = pynvml.nvmlDeviceCreateGpuInstance(handle, profile.id)
        instance = int(pynvml.nvmlGpuInstanceGetInfo(gpu).id)
        try:
            compute = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                gpu, number, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
            pynvml.nvmlGpuInstanceCreateComputeInstance(gpu, compute.id)
            device = _device(handle, instance)
            return {
                "card": self._card.uuid,
                "uuid": _text(pynvml.nvmlDeviceGetUUID(device)),
                "gpu_instance": instance,
                "profile": profile.name.removeprefix("MIG "),
                "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(device).total),
            }
        except pynvml.NVMLError:
            _destroy(handle, instance)
            raise

    def limit(self, session: str, memory_bytes: int) -> None:
        """Nothing: a slice is as large as it is."""

    def cgroup(self, session: str) -> str | None:
        """None is needed."""
        return None

    def gpu_instance(self, session: str) -> int | None:
        """The id of the session's slice on the card."""
        known = self._read(session)
        return None if known is None else int(known["gpu_instance"])

    def release(self, session: str) -> None:
        """Destroy the session's slice. One that still has processes stays, with a line in the log."""
        known = self._read(session)
        if known is None:
            return
        self._driver.with_card(self._card.uuid, lambda handle: _destroy(handle, int(known["gpu_instance"])))
        self._file(session).unlink(missing_ok=True)

    def _file(self, session: str) -> Path:
        return self._folders / session / _FILE

    def _read(self, session: str) -> dict[str, Any] | None:
        try:
            known: dict[str, Any] = json.loads(self._file(session).read_text())
        except FileNotFoundError:
            return None
        return known if known.get("card") == self._card.uuid else None

    def _write(self, session: str, made: dict[str, Any]) -> None:
        file = self._file(session)
        file.parent.mkdir(mode=0o755, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(json.dumps(made))
        new.replace(file)


def is_cut(driver: Driver, uuid: str) -> bool:
    """Whether a card is in MIG mode now."""
    try:
        current, _ = driver.with_card(uuid, pynvml.nvmlDeviceGetMigMode)
    except GPUSpawnerError:
        return False
    return bool(current)


def _device(handle: Any, instance: int) -> Any:
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError_NotFound:
            continue
        if pynvml.nvmlDeviceGetGpuInstanceId(device) == instance:
            return device
    raise pynvml.NVMLError_NotFound


def _destroy(handle: Any, instance: int) -> None:
    """Destroy a GPU instance with what is in it; one that is gone is no error."""
    try:
        gpu = pynvml.nvmlDeviceGetGpuInstanceById(handle, instance)
    except pynvml.NVMLError_NotFound:
        return
    for number in set(PROFILES.values()):
        try:
            compute = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu, number, 0)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            continue
        found = (pynvml.c_nvmlComputeInstance_t * max(1, int(compute.instanceCount)))()
        count = c_uint()
        pynvml.nvmlGpuInstanceGetComputeInstances(gpu, compute.id, found, byref(count))
        for each in found[: count.value]:
            pynvml.nvmlComputeInstanceDestroy(each)
    pynvml.nvmlGpuInstanceDestroy(gpu)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
