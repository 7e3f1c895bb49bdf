"""What is published about a card so that people and the scheduler can choose: read from its driver and from sysfs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml

from gpuspawner import kubernetes_names as names
from gpuspawner.card import SIMULATED_SUFFIX, Card
from gpuspawner.errors import GPUSpawnerError
from gpuspawner.node.dra.published import Device, attribute
from gpuspawner.node.drivers.base import Driver

#: NVML's numbers of architectures (nvmlDeviceArchitecture_t in nvml.h).
_GENERATIONS = {2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper"}
_GENERATIONS |= {10: "blackwell"}
_MOST_LINKS = 18
_NVIDIA = "0x10de"


def devices(cards: list[Card], driver: Driver, grades: Mapping[str, str], resizes: Mapping[str, str]) -> list[Device]:
    """Every card as it is published. `grades` and `resizes` by uuid."""
    places = {card.uuid: _pci(driver, card.uuid) for card in cards}
    islands = _islands(cards, driver, places)
    version = _ask(driver, cards[0].uuid, lambda _: pynvml.nvmlSystemGetDriverVersion()) if cards else None
    found = []
    for card in cards:
        pci = places[card.uuid]
        sysfs = _folder(pci)
        own: dict[str, Any] = {
            names.ATTRIBUTE_UUID: card.uuid,
            names.ATTRIBUTE_MODEL: card.model,
            names.ATTRIBUTE_PRODUCT: card.name,
            names.ATTRIBUTE_VENDOR: _vendor(card),
            names.ATTRIBUTE_GENERATION: _GENERATIONS.get(_ask(driver, card.uuid, pynvml.nvmlDeviceGetArchitecture)),
            names.ATTRIBUTE_MEMORY: card.memory_bytes,
            names.ATTRIBUTE_INDEX: card.index,
            names.ATTRIBUTE_NUMA: _numa(driver, card, sysfs),
            names.ATTRIBUTE_ISLAND: islands.get(card.uuid),
            names.ATTRIBUTE_NICS: ",".join(nics_beside(sysfs)) if sysfs else None,
            names.ATTRIBUTE_DRIVER: version,
            names.ATTRIBUTE_GRADE: grades.get(card.uuid),
            names.ATTRIBUTE_RESIZE: resizes.get(card.uuid),
            names.ATTRIBUTE_SIMULATED: card.simulated,
        }
        shown = {f"{names.DRIVER}/{name}": value for name, value in own.items()}
        shown[names.ATTRIBUTE_PCI] = pci
        shown[names.ATTRIBUTE_PCI_ROOT] = _root(sysfs)
        known = {name: content for name, value in shown.items() if (content := attribute(value)) is not None}
        found.append(Device(names.device_name(card.uuid), known))
    return found


def nics_beside(sysfs: Path) -> list[str]:
    """RDMA devices that share the card's closest PCI switch, by name. `sysfs`: the card's folder."""
    try:
        above = sysfs.resolve(strict=True).parents
    except OSError:
        return []
    # card -> its port of the switch -> the switch's upper port; on a root port alone there is no switch
    if len(above) < 2 or not _is_bridge(above[0]) or not _is_bridge(above[1]):
        return []
    return sorted({found.name for found in above[1].glob("*/*/infiniband/*")})


def _is_bridge(folder: Path) -> bool:
    return re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", folder.name) is not None


def _vendor(card: Card) -> str | None:
    first = card.name.removesuffix(SIMULATED_SUFFIX).split()[:1]
    return first[0].lower() if first and first[0].lower() in ("nvidia", "amd") else None


def _pci(driver: Driver, uuid: str) -> str | None:
    """Its address as the kernel writes it: "0000:3b:00.0"."""
    found = _ask(driver, uuid, pynvml.nvmlDeviceGetPciInfo)
    if found is None:
        return None
    return _place(found)


def _place(pci: Any) -> str:
    text = pci.busId.decode() if isinstance(pci.busId, bytes) else str(pci.busId)
    return text.lower()[-12:]  # NVML's domain has eight digits, the kernel's four


def _folder(pci: str | None) -> Path | None:
    """The kernel's folder of a card; None where there is another device at that place, or none."""
    folder = Path("/sys/bus/pci/devices") / (pci or "none")
    try:
        return folder if (folder / "vendor").read_text().strip() == _NVIDIA else None
    except OSError:
        return None


def _numa(driver: Driver, card: Card, sysfs: Path | None) -> int | None:
    node = _ask(driver, card.uuid, getattr(pynvml, "nvmlDeviceGetNumaNodeId", None))
    if node is None and sysfs is not None:
        try:
            node = int((sysfs / "numa_node").read_text())
        except (OSError, ValueError):
            return None
    return node if node is not None and node >= 0 else None


def _root(sysfs: Path | None) -> str | None:
    try:
        found = re.search(r"/(pci[0-9a-f]{4}:[0-9a-f]{2})/", str(sysfs.resolve(strict=True))) if sysfs else None
    except OSError:
        return None
    return found.group(1) if found else None


def _islands(cards: list[Card], driver: Driver, places: Mapping[str, str | None]) -> dict[str, int]:
    """The number of each card's island: cards that reach each other over NVLink, directly or over switches."""
    by_place = {place: uuid for uuid, place in places.items() if place}
    island = {card.uuid: card.index for card in cards}
    linked: set[str] = set()
    switched: list[str] = []
    for card in cards:
        for link in range(_MOST_LINKS):
            if not _ask(driver, card.uuid, lambda handle, link=link: pynvml.nvmlDeviceGetNvLinkState(handle, link)):
                continue
            linked.add(card.uuid)
            far = _ask(
                driver, card.uuid, lambda handle, link=link: pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)
            )
            other = by_place.get(_place(far)) if far is not None else None
            if other is None:
                switched.append(card.uuid)
            else:
                _join(island, card.uuid, other)
    for uuid in switched[1:]:
        _join(island, switched[0], uuid)
    return {uuid: number for uuid, number in island.items() if uuid in linked}


def _join(island: dict[str, int], one: str, other: str) -> None:
    low, high = sorted((island[one], island[other]))
    for uuid, number in island.items():
        if number == high:
            island[uuid] = low


def _ask(driver: Driver, uuid: str, question: Any) -> Any:
    """What the driver answers; None where it does not say."""
    if question is None:
        return None
    try:
        answer = driver.with_card(uuid, question)
    except GPUSpawnerError:
        return None
    return answer.decode() if isinstance(answer, bytes) else answer
