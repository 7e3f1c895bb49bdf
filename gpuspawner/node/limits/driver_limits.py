"""The driver's own memory limits of cgroups (NVIDIA driver 615 and later, CUDA 13.4): a user cannot get around them.

NVIDIA, "MPS v3 Memory Partitioning" (docs.nvidia.com/deploy/mps): a hard limit is held when memory is allocated; cards
in MIG mode are not supported; managed memory is not counted on the card. Limits are set through NVML and never by
writing `dmem.max`. What a limit below the use does is not documented, so every change is read back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pynvml

from gpuspawner.card import Card
from gpuspawner.errors import GPUSpawnerError, InUse, Unavailable
from gpuspawner.node.drivers.base import Driver
from gpuspawner.node.limits.cgroups import SessionCgroups
from gpuspawner.node.limits.enforcer import Name, Place, Resize, ShimEnforcer, by_eighths

log = logging.getLogger(__name__)

NO_LIMIT = (1 << 64) - 1
_PROBE = "probe"


class DriverLimits(ShimEnforcer):
    """Memory by the driver, by cgroup; the card's time by the shim as everywhere."""

    name: Name = "driver"
    kernel = True
    resize: Resize = "live"

    def __init__(self, card: Card, driver: Driver, cgroups: SessionCgroups) -> None:
        super().__init__(card)
        self._driver = driver
        self._cgroups = cgroups

    def take(self, session: str, eighths: int) -> Place:
        """The card, and a cgroup for the session."""
        try:
            self._cgroups.make(session)
        except OSError as error:
            raise Unavailable(f"The session's cgroup cannot be made: {error}.", code="cgroup") from error
        return super().take(session, eighths)

    def fits(self, taken: Sequence[int]) -> Mapping[int, int]:
        """As many as the free eighths hold."""
        return by_eighths(taken)

    def cgroup(self, session: str) -> str | None:
        """The session's cgroup."""
        path = self._cgroups.path(session)
        return None if path is None else str(path)

    def limit(self, session: str, memory_bytes: int) -> None:
        """Set the hard limit and read it back. Raises InUse where the driver keeps the old one since more is used."""
        path = self.cgroup(session)
        if path is None:
            return
        set_limit(self._driver, self._card.uuid, path, memory_bytes)
        hard, used = read_limit(self._driver, self._card.uuid, path)
        if hard == memory_bytes:
            return
        if used > memory_bytes:
            raise InUse(
                f"Free {used - memory_bytes:,} bytes first: the driver did not take a limit of {memory_bytes:,} bytes "
                f"while {used:,} are in use. Nothing was changed.",
                need_to_free_bytes=used - memory_bytes,
                used_bytes=used,
                allowed_bytes=memory_bytes,
            )
        raise Unavailable(
            f"The driver holds the session to {hard:,} bytes, and {memory_bytes:,} were to be set.", code="limit"
        )

    def release(self, session: str) -> None:
        """Take the limit away and remove the cgroup: in this order, or the driver keeps what it reserved for it."""
        path = self.cgroup(session)
        if path is None:
            return
        with contextlib.suppress(GPUSpawnerError):
            set_limit(self._driver, self._card.uuid, path, NO_LIMIT)
        if not self._cgroups.remove(session):
            log.warning("the cgroup %s is not empty and stays", path)


def set_limit(driver: Driver, uuid: str, cgroup: str, hard: int) -> None:
    """Set a cgroup's hard limit in bytes; NO_LIMIT takes it away."""

    def call(handle: Any) -> None:
        pynvml.nvmlDeviceSetMemoryLimits_v1(handle, pynvml.c_nvmlSetMemoryLimits_v1_t(cgroup.encode(), 0, hard))

    try:
        driver.with_card(uuid, call)
    except GPUSpawnerError as error:
        if not isinstance(error.__cause__, pynvml.NVMLError_InUse):
            raise
        log.info("the driver refuses a limit below what %s uses", cgroup)


def read_limit(driver: Driver, uuid: str, cgroup: str) -> tuple[int, int]:
    """A cgroup's hard limit and what it uses, in bytes."""

    def call(handle: Any) -> tuple[int, int]:
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t(cgroup.encode())
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
        return int(limits.hardLimit), int(limits.currentUsed)

    hard, used = driver.with_card(uuid, call)
    return hard, used


def probe(card: Card, driver: Driver, cgroups: SessionCgroups) -> str | None:
    """Try a limit on a cgroup of our own. None if it is in force then, else why not."""
    try:
        path = str(cgroups.make(_PROBE))
        try:
            set_limit(driver, card.uuid, path, card.memory_bytes // 2)
            hard, _ = read_limit(driver, card.uuid, path)
            set_limit(driver, card.uuid, path, NO_LIMIT)
        finally:
            cgroups.remove(_PROBE)
    except OSError as error:
        return f"no cgroup can be made: {error}"
    except GPUSpawnerError as error:
        return str(error.__cause__ or error)
    return None if hard == card.memory_bytes // 2 else f"a limit of {card.memory_bytes // 2} bytes read back as {hard}"
