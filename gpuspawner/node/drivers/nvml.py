"""NVIDIA cards, real or simulated alike, read through NVML by `pynvml`."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from gpuspawner.card import Card
from gpuspawner.node.drivers import readings
from gpuspawner.node.drivers.base import Access, DriverError, Sample
from gpuspawner.node.drivers.patience import Patience
from gpuspawner.node.health import Readings

T = TypeVar("T")
log = logging.getLogger(__name__)


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
#: Seconds that the library may take to open: it wakes all cards of a machine, one after the other.
_OPEN_WITHIN = 30.0
#: The NVIDIA kernel driver lists its cards here, those that came after a library was opened included.
KERNEL_LIST = Path("/proc/driver/nvidia/gpus")


class NVMLDriver:
    """One machine's cards (`base.Driver`). NVML is opened at first use, and opened again when it reports that it lost
    the driver.
    """

    def __init__(self, patience: Patience | None = None, kernel_list: Path = KERNEL_LIST) -> None:
        self._patience = patience or Patience("The card driver (NVML)")
        self._kernel_list = kernel_list
        self._listed_before = 0
        # All below is for the thread that makes the calls.
        self._open = False
        self._handles: dict[str, Any] = {}
        self._events: Any = None
        self._lost: set[int] = set()
        self._useless: set[int] = set()

    @cached_property
    def cuda_library(self) -> Path | None:
        """The driver library that programs load, to be put behind the shim."""
        return find_library("libcuda.so.1")

    @cached_property
    def nvml_library(self) -> Path | None:
        """The NVML library, to be put behind its shim."""
        return find_library("libnvidia-ml.so.1")

    def cards(self) -> list[Card]:
        """The cards of this machine that can be used now, by index. After a look at which some could not, the library
        is opened anew, since it knows only those that were there when it was opened."""

        def read() -> list[Card]:
            if self.missing():
                self._close()
            self._ensure_open()
            self._listed_before = self._listed()
            found = [self._card(index) for index in range(pynvml.nvmlDeviceGetCount())]
            return [card for card in found if card is not None]

        return self._ask(read, "The card driver", seconds=_OPEN_WITHIN)

    def missing(self) -> bool:
        """Whether cards were lost at the last look, or have come since."""
        return bool(self._lost) or self._listed() > self._listed_before

    def only_whole(self, uuid: str) -> str | None:
        """Nothing of the driver's own keeps a card from being shared."""
        return None

    def access(self, uuids: Collection[str]) -> Access:
        """NVIDIA's variables and device files are seen to by whoever chooses the enforcer."""
        return Access()

    def _listed(self) -> int:
        try:
            return len(list(self._kernel_list.iterdir()))
        except OSError:
            return 0

    def _card(self, index: int) -> Card | None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            card = Card(
                uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                index=index,
                name=_text(pynvml.nvmlDeviceGetName(handle)),
                memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            )
        except pynvml.NVMLError_GpuIsLost as error:
            if index not in self._lost:
                log.warning("card %s is left out until its driver shows it again: %s", index, error)
            self._lost.add(index)
            return None
        except pynvml.NVMLError_NotSupported as error:
            if index not in self._useless:
                log.warning("card %s cannot be used: its driver does not say what it is: %s", index, error)
            self._useless.add(index)
            return None
        self._lost.discard(index)
        self._handles[card.uuid] = handle
        return card

    def with_card(self, uuid: str, do: Callable[[Any], T], late: Callable[[T], object] | None = None) -> T:
        """What `do` returns for the card's NVML handle. Raises DriverError, with NVML's own error as its cause."""
        return self._ask(lambda: do(self._handle(uuid)), f"The driver of card {uuid}", late)

    def _ask(
        self,
        do: Callable[[], T],
        who: str,
        late: Callable[[T], object] | None = None,
        *,
        seconds: float | None = None,
    ) -> T:
        def ask() -> T:
            try:
                self._ensure_open()
                return do()
            except _DRIVER_GONE:
                self._close()
                raise

        try:
            return self._patience.call(ask, late, seconds=seconds)
        except pynvml.NVMLError as error:
            raise DriverError(f"{who} does not answer: {error}.") from error

    def readings(self, uuid: str, xids: tuple[int, ...]) -> Readings:
        """What the driver tells of a card's health now, with the XID codes that are known of it."""
        try:
            return self.with_card(uuid, lambda handle: readings.read(handle, xids))
        except DriverError as error:
            lost = isinstance(error.__cause__, pynvml.NVMLError_GpuIsLost)
            return Readings(answers=False, lost=lost, xids=xids)

    def samples(self, uuid: str) -> list[Sample]:
        """All that the driver still knows of what processes did on a card."""

        def read(handle: Any) -> list[Any]:
            try:
                # all, and not those after a moment: their stamps follow a clock that may be set back
                return list(pynvml.nvmlDeviceGetProcessUtilization(handle, 0))
            except pynvml.NVMLError_NotFound:
                return []  # nobody did anything

        return [
            Sample(
                int(each.pid),
                int(each.timeStamp),
                int(each.smUtil),
                bool(each.smUtil or each.memUtil or each.encUtil or each.decUtil),
            )
            for each in self.with_card(uuid, read)
        ]

    def idle(self, uuid: str) -> bool | None:
        """Whether the card computes nothing now; None where the driver does not tell."""
        try:
            return self.with_card(uuid, lambda handle: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)) == 0
        except DriverError as error:
            if isinstance(error.__cause__, pynvml.NVMLError_NotSupported):
                return None
            raise

    def new_xids(self) -> list[tuple[str, int]]:
        """Card uuid and code of the XID events since the last call; none where the driver reports none."""

        def read() -> list[tuple[str, int]]:
            found = []
            try:
                if self._events is None:
                    self._events = self._listen()
                while True:
                    event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                    found.append((_text(pynvml.nvmlDeviceGetUUID(event.device)), int(event.eventData)))
            except pynvml.NVMLError_Timeout:
                return found
            except pynvml.NVMLError as error:
                if isinstance(error, _DRIVER_GONE):
                    self._close()
                return found

        try:
            return self._ask(read, "The card driver")
        except DriverError:
            return []

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

        def read(handle: Any) -> dict[int, int | None]:
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
            return {pid: None if pid in unknown else used[pid] for pid in {*used, *unknown}}

        return self.with_card(uuid, read)

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
