"""Chooses for each card of a machine what holds sessions to their shares of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pynvml

from gpuspawner.card import Card
from gpuspawner.errors import GPUSpawnerError, Unavailable
from gpuspawner.node.drivers.base import Driver
from gpuspawner.node.limits import cgroups, devices, driver_limits, mig, sriov
from gpuspawner.node.limits.enforcer import (
    VARIABLE,
    Enforcer,
    Name,
    ShimEnforcer,
    VirtualFunctionEnforcer,
    WholeEnforcer,
    wanted,
)

log = logging.getLogger(__name__)


class Enforcers:
    """The enforcer of each card.

    `folders`: the node's folder of each session. `name` tells installations on one machine apart. `guarded`: whether
    sessions get namespaces of their own and are not run by root.

    Raises InvalidInput for a setting that names no enforcer, Unavailable for a card that none of those named can serve.
    """

    def __init__(
        self,
        cards: Iterable[Card],
        driver: Driver,
        folders: Path,
        name: str,
        *,
        guarded: bool,
        names: Sequence[Name] | None = None,
        sysfs: Path = sriov.SYSFS,
    ) -> None:
        self._driver = driver
        self._folders = folders
        self._guarded = guarded
        self._sysfs = sysfs
        below = cgroups.root()
        self._cgroups = cgroups.SessionCgroups(below, name) if below and guarded and cgroups.may_make(below) else None
        self._minors: dict[str, int | None] = {}
        self._names = names or wanted()
        self._by_card: dict[str, Enforcer] = {}
        for card in cards:
            self.add(card)

    def add(self, card: Card) -> None:
        """Choose for one more card. Raises Unavailable where none can serve it."""
        self._by_card[card.uuid] = self._choose(card, self._names)

    def of(self, uuid: str) -> Enforcer:
        """What holds sessions on a card."""
        return self._by_card[uuid]

    def is_kernel(self, uuid: str) -> bool:
        """Whether a session on the card cannot get around its limit, however it is started here."""
        return self._guarded and self._by_card[uuid].kernel

    def release(self, session: str, cards: Iterable[str]) -> None:
        """Let go of what a session had on cards; raises where its processes still use it."""
        for uuid in cards:
            if uuid in self._by_card:
                self._by_card[uuid].release(session)

    def cgroup(self, session: str, cards: Iterable[str]) -> str | None:
        """The cgroup that the session must run in, if one of its cards needs that."""
        known = [self._by_card[uuid] for uuid in cards if uuid in self._by_card]
        return next((path for enforcer in known if (path := enforcer.cgroup(session))), None)

    def hidden(self, session: str, cards: Iterable[str]) -> list[Path]:
        """Device files of NVIDIA's cards that the session must not see."""
        own = []
        for uuid in cards:
            minor = self._minors.get(uuid)
            if minor is not None:
                enforcer = self._by_card[uuid]
                instance = enforcer.gpu_instance(session) if isinstance(enforcer, mig.MigSlices) else None
                own.append(devices.Own(minor, instance))
        return devices.to_hide(own) if any(minor is not None for minor in self._minors.values()) else []

    def close(self) -> None:
        """Remove what is empty."""
        if self._cgroups is not None:
            self._cgroups.close()

    def _choose(self, card: Card, names: Sequence[Name]) -> Enforcer:
        why = self._driver.only_whole(card.uuid)
        if why is not None:
            reachable = bool(self._driver.access([card.uuid]).own)
            return self._chosen(card, WholeEnforcer(card, kernel=reachable, why=why))
        minor = self._minors[card.uuid] = self._ask(card, pynvml.nvmlDeviceGetMinorNumber)
        kernel = minor is not None and devices.can_hide(minor)
        cut = mig.is_cut(self._driver, card.uuid)
        pci = self._ask(card, pynvml.nvmlDeviceGetPciInfo)
        virtual = pci is not None and sriov.is_virtual(_text(pci.busId), self._sysfs)
        reasons = []
        for name in names:
            if name == "mig":
                if cut:
                    return self._chosen(card, mig.MigSlices(card, self._driver, self._folders, kernel=kernel))
                reasons.append("mig: the card is not in MIG mode")
            elif cut:
                reasons.append(f"{name}: the card is in MIG mode and can only be used in slices")
            elif name == "virtual-function":
                if virtual:
                    return self._chosen(card, VirtualFunctionEnforcer(card, kernel=kernel))
                reasons.append("virtual-function: the card is none")
            elif name == "driver":
                missing = self._no_driver_limits(card)
                if missing is None and self._cgroups is not None:
                    return self._chosen(card, driver_limits.DriverLimits(card, self._driver, self._cgroups))
                reasons.append(f"driver: {missing}")
            elif name == "whole":
                return self._chosen(card, WholeEnforcer(card, kernel=kernel))
            else:
                return self._chosen(card, ShimEnforcer(card))
        raise Unavailable(
            f"{VARIABLE}: none of {', '.join(names)} can serve the card {card.uuid}. {'; '.join(reasons)}.",
            code="enforcer",
            field=VARIABLE,
            given=",".join(names),
        )

    def _chosen(self, card: Card, enforcer: Enforcer) -> Enforcer:
        log.info("card %s is shared by: %s", card.uuid, enforcer.name)
        return enforcer

    def _no_driver_limits(self, card: Card) -> str | None:
        if self._cgroups is None:
            who = "" if os.geteuid() == 0 else " (that needs root)"
            return f"no cgroup of version 2 can be made for sessions with namespaces of their own{who}"
        return driver_limits.probe(card, self._driver, self._cgroups)

    def _ask(self, card: Card, question: Any) -> Any:
        try:
            return self._driver.with_card(card.uuid, question)
        except GPUSpawnerError:
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
