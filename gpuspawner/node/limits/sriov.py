"""SR-IOV virtual functions, read from sysfs: small devices that a physical card is divided into.

Linux, Documentation/PCI/pci-iov-howto.rst: a physical function has `sriov_totalvfs`, `sriov_numvfs` and a link
`virtfnN` for each virtual function, and each of those a link `physfn` back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys")
VENDORS = {0x10DE: "nvidia", 0x1002: "amd", 0x8086: "intel"}
_DISPLAY_CLASS = 0x03
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]\Z")


@dataclass(frozen=True)
class VirtualFunction:
    """One virtual function: its PCI address, that of its card, the vendor, and the kernel driver that has it."""

    address: str
    parent: str
    vendor: str
    number: int
    driver: str | None


def virtual_functions(sysfs: Path = SYSFS) -> list[VirtualFunction]:
    """The virtual functions of this machine's display and 3D controllers, by card and number."""
    found = []
    devices = sysfs / "bus" / "pci" / "devices"
    for parent in sorted(devices.iterdir()) if devices.is_dir() else ():
        if not _ADDRESS.match(parent.name) or not _number(parent / "sriov_numvfs"):
            continue
        for link in parent.glob("virtfn*"):
            number = link.name.removeprefix("virtfn")
            device = devices / link.resolve().name
            vendor = VENDORS.get(_number(device / "vendor") or 0)
            if number.isdigit() and vendor and (_number(device / "class") or 0) >> 16 == _DISPLAY_CLASS:
                found.append(VirtualFunction(device.name, parent.name, vendor, int(number), _driver(device)))
    return sorted(found, key=lambda each: (each.parent, each.number))


def is_virtual(address: str, sysfs: Path = SYSFS) -> bool:
    """Whether the PCI device at `address` (as NVML or sysfs write it) is a virtual function."""
    return (sysfs / "bus" / "pci" / "devices" / normal(address) / "physfn").exists()


def normal(address: str) -> str:
    """A PCI address as sysfs writes it: NVML has eight digits for the domain, and capitals.

    >>> normal("00000000:3B:00.4")
    '0000:3b:00.4'
    """
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}"


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text().strip(), 0)
    except (OSError, ValueError):
        return None


def _driver(device: Path) -> str | None:
    link = device / "driver"
    return link.resolve().name if link.is_symlink() else None
