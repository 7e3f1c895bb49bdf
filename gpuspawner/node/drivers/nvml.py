"""NVIDIA cards, real or simulated alike, read through NVML by `pynvml`."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import pynvml

from gpuspawner.card import Card
from gpuspawner.errors import Unavailable


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


class NVMLDriver:
    """One machine's cards. NVML is opened at first use, and opened again when it reports that it lost the driver.

    Every method raises DriverError when the driver does not answer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._handles: dict[str, Any] = {}

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
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    card = Card(
                        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                        index=index,
                        name=_text(pynvml.nvmlDeviceGetName(handle)),
                        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                    )
                    self._handles[card.uuid] = handle
                    cards.append(card)
            except pynvml.NVMLError as error:
                self._close()
                raise DriverError(f"The card driver does not answer: {error}.") from error
            return cards

    def used_bytes(self, uuid: str) -> dict[int, int | None]:
        """Bytes in use on a card by process id (in this process's pid namespace), as the driver sees it.

        A value is None where the driver knows that the process uses the card, but not how much.
        """
        with self._lock:
            try:
                self._ensure_open()
                handle = self._handles.get(uuid)
                if handle is None:
                    handle = self._handles[uuid] = pynvml.nvmlDeviceGetHandleByUUID(uuid)
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
                self._close()
                raise DriverError(f"The driver of card {uuid} does not answer: {error}.") from error
        return {pid: None if pid in unknown else used[pid] for pid in {*used, *unknown}}

    def _ensure_open(self) -> None:
        if not self._open:
            pynvml.nvmlInit()
            self._open = True

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._handles.clear()
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
