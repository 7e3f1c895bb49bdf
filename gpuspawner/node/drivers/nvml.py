"""NVIDIA cards, real or simulated alike, read through NVML by `pynvml`."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from gpuspawner.card import Card
from gpuspawner.errors import Unavailable
from gpuspawner.node.drivers import readings
from gpuspawner.node.health import Readings

T = TypeVar("T")
log = logging.getLogger(__name__)


class DriverError(Unavailable):
    """The driver is not there or does not answer."""

    code = "driver"


def find_library(soname: str) -> Path | None:
    """The file that the dynamic linker loads for `soname` in this process: LD_LIBRARY_PATH, then its cache."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and (path := Path(folder) / soname).is_file():
            return path.resolve()
    for ldconfig in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        try:
            listing = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
        except OSError:
            continue
        bits = "x86-64" if ctypes.sizeof(ctypes.c_void_p) == 8 and os.uname().machine == "x86_64" else ""
        for line in listing.splitlines():
            name, _, target = line.strip().partition(" => ")
            if name.startswith(f"{soname} ") and bits in name:
                return Path(target).resolve()
        return None
    return None


# After these the library is opened again. A card that is lost is no reason: the others are still there.
_DRIVER_GONE = (pynvml.NVMLError_Uninitialized, pynvml.NVMLError_DriverNotLoaded, pynvml.NVMLError_Unknown)


class NVMLDriver:
    """One machine's cards. NVML is opened at first use, and opened again when it reports that it lost the driver.

    Every method raises DriverError when the driver does not answer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._handles: dict[str, Any] = {}
        self._events: Any = None

    @cached_property
    def cuda_library(self) -> Path | None:
        """The driver library that programs load, to be put behind the shim."""
        return find_library("libcuda.so.1")

    @cached_property
    def nvml_library(self) -> Path | None:
        """The NVML library, to be put behind its shim."""
        return find_library("libnvidia-ml.so.1")

    def cards(self) -> list[Card]:
        """All cards of this machine, by index."""
        with self._lock:
            try:
                self._ensure_open()
                cards = []
                for index in range(pynvml.nvmlDeviceGetCount()):
                    try:
                        cards.append(self._card(index))
                    except (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_NotSupported) as error:
                        log.warning("card %s is left out until the next start: %s", index, error)
            except pynvml.NVMLError as error:
                self._close()
                raise DriverError(f"The card driver does not answer: {error}.") from error
            return cards

    def _card(self, index: int) -> Card:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        card = Card(
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            index=index,
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        )
        self._handles[card.uuid] = handle
        return card

    def with_card(self, uuid: str, do: Callable[[Any], T]) -> T:
        """What `do` returns for the card's NVML handle. Raises DriverError, with NVML's own error as its cause."""
        with self._lock:
            try:
                self._ensure_open()
                return do(self._handle(uuid))
            except pynvml.NVMLError as error:
                if isinstance(error, _DRIVER_GONE):
                    self._close()
                raise DriverError(f"The driver of card {uuid} does not answer: {error}.") from error

    def readings(self, uuid: str, xids: tuple[int, ...]) -> Readings:
        """What the driver tells of a card's health now, with the XID codes that are known of it."""
        try:
            return self.with_card(uuid, lambda handle: readings.read(handle, xids))
        except DriverError as error:
            lost = isinstance(error.__cause__, pynvml.NVMLError_GpuIsLost)
            return Readings(answers=False, lost=lost, xids=xids)

    def utilization(self, uuid: str, since: int) -> tuple[int, dict[int, int]]:
        """Percent of the card that each process had of late, by pid, from figures newer than `since`, and how new the
        newest is (microseconds, the driver's clock). Raises DriverError, also where the driver does not tell."""

        def read(handle: Any) -> list[Any]:
            try:
                return list(pynvml.nvmlDeviceGetProcessUtilization(handle, since))
            except pynvml.NVMLError_NotFound:
                return []  # nobody had it

        newest: dict[int, Any] = {}
        for sample in self.with_card(uuid, read):
            if sample.timeStamp > since and (
                sample.pid not in newest or sample.timeStamp > newest[sample.pid].timeStamp
            ):
                newest[sample.pid] = sample
        latest = max((int(sample.timeStamp) for sample in newest.values()), default=since)
        return latest, {pid: int(sample.smUtil) for pid, sample in newest.items()}

    def new_xids(self) -> list[tuple[str, int]]:
        """Card uuid and code of the XID events since the last call; none where the driver reports none."""
        found = []
        with self._lock:
            try:
                self._ensure_open()
                if self._events is None:
                    self._events = self._listen()
                while True:
                    event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                    found.append((_text(pynvml.nvmlDeviceGetUUID(event.device)), int(event.eventData)))
            except pynvml.NVMLError_Timeout:
                pass
            except pynvml.NVMLError as error:
                if isinstance(error, _DRIVER_GONE):
                    self._close()
        return found

    def _listen(self) -> Any:
        events = pynvml.nvmlEventSetCreate()
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                if pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventTypeXidCriticalError:
                    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
            except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_GpuIsLost) as error:
                log.info("card %s reports no XID events: %s", index, error)
        return events

    def _handle(self, uuid: str) -> Any:
        handle = self._handles.get(uuid)
        if handle is None:
            handle = self._handles[uuid] = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return handle

    def used_bytes(self, uuid: str) -> dict[int, int | None]:
        """Bytes in use on a card by process id (in this process's pid namespace), as the driver sees it.

        A value is None where the driver knows that the process uses the card, but not how much.
        """
        with self._lock:
            try:
                self._ensure_open()
                handle = self._handle(uuid)
                used: Counter[int] = Counter()
                unknown: set[int] = set()
                seen: set[tuple[int, int]] = set()
                for running in (
                    pynvml.nvmlDeviceGetComputeRunningProcesses,
                    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
                ):
                    for process in _processes(running, handle):
                        if process.usedGpuMemory is None:
                            unknown.add(process.pid)
                        elif (process.pid, process.usedGpuMemory) not in seen:
                            # A process with both kinds of context is listed twice with the same figure.
                            seen.add((process.pid, process.usedGpuMemory))
                            used[process.pid] += process.usedGpuMemory
            except pynvml.NVMLError as error:
                if isinstance(error, _DRIVER_GONE):
                    self._close()
                raise DriverError(f"The driver of card {uuid} does not answer: {error}.") from error
        return {pid: None if pid in unknown else used[pid] for pid in {*used, *unknown}}

    def worked(self, uuid: str, since_us: int) -> tuple[set[int], int] | None:
        """The processes that the driver saw at work on a card after `since_us`, and the time of its newest sample
        (both in its own microseconds). None where it keeps no samples of processes and the card itself is not idle.
        """
        with self._lock:
            try:
                self._ensure_open()
                handle = self._handles.get(uuid) or pynvml.nvmlDeviceGetHandleByUUID(uuid)
                try:
                    samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
                except pynvml.NVMLError_NotFound:  # no sample since then
                    return set(), since_us
                except pynvml.NVMLError_NotSupported:
                    idle = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) == 0
                    return (set(), since_us) if idle else None
            except pynvml.NVMLError_NotSupported:
                return None
            except pynvml.NVMLError as error:
                self._close()
                raise DriverError(f"The driver of card {uuid} does not answer: {error}.") from error
        newest = max((int(sample.timeStamp) for sample in samples), default=since_us)
        used = (sample for sample in samples if sample.smUtil or sample.memUtil or sample.encUtil or sample.decUtil)
        return {int(sample.pid) for sample in used}, newest

    def _ensure_open(self) -> None:
        if not self._open:
            pynvml.nvmlInit()
            self._open = True

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._handles.clear()
            self._events = None  # it goes with the library
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return


def _processes(running: Any, handle: Any) -> list[Any]:
    try:
        return list(running(handle))
    except pynvml.NVMLError_NotSupported:
        return []


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
