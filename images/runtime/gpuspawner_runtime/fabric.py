"""The fabric that is really there: RDMA ports, network interfaces, cards, and what stands between them and RDMA.

Read from sysfs and procfs below `root`, so that any machine can be laid out in a folder. File formats:
Documentation/ABI/stable/sysfs-class-infiniband and Documentation/ABI/testing/sysfs-bus-pci of the Linux kernel.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

#: Bytes that RDMA wants to lock at least; NCCL registers about 4 MiB for each channel and peer, and queues beside.
MEMLOCK_NEEDED = 64 * 1024 * 1024
_CAP_IPC_LOCK = 14
#: Virtual interfaces and those of containers: other machines are not reached by them.
_INNER = re.compile(r"lo$|docker|veth|br-|virbr|cni|flannel|cali|dummy|tun|tap|wg|ib-.*mgmt")
_NVIDIA, _AMD = "0x10de", "0x1002"


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device (HCA).

    `rate`: Gbit/s; `link`: `InfiniBand` or `Ethernet`; `gid_index`: of a RoCE v2 address, None on InfiniBand;
    `unusable`: why it cannot be used, None if it can.
    """

    device: str
    number: int
    link: str
    rate: float
    pci: str | None
    numa: int | None
    gid_index: int | None
    interface: str | None
    unusable: str | None

    @property
    def name(self) -> str:
        """As NCCL writes it: `mlx5_0:1`."""
        return f"{self.device}:{self.number}"


@dataclass(frozen=True)
class Interface:
    """A network interface that may lead to other machines. `speed`: Mbit/s, None where the driver does not say."""

    name: str
    up: bool
    speed: int | None
    default: bool


@dataclass(frozen=True)
class Card:
    """A card on the PCI bus, and its nearest usable RDMA port with the distance in NCCL's words (PIX … SYS)."""

    pci: str
    vendor: str
    numa: int | None
    port: str | None
    distance: str | None


@dataclass(frozen=True)
class Fabric:
    """What is there. `memlock`: bytes that may be locked, None for no limit; `gpudirect`: how cards and RDMA ports
    reach each other's memory (`nvidia_peermem`, `dmabuf`, `amdgpu`), None if they do not."""

    ports: tuple[Port, ...]
    interfaces: tuple[Interface, ...]
    cards: tuple[Card, ...]
    memlock: int | None
    gpudirect: str | None

    @property
    def usable(self) -> tuple[Port, ...]:
        """The ports to use together: of one kind, and as fast as the fastest of it. A slower one would hold up all."""
        working = [port for port in self.ports if port.unusable is None]
        kinds = {port.link for port in working}
        link = "InfiniBand" if "InfiniBand" in kinds else "Ethernet"
        best = max((port.rate for port in working if port.link == link), default=0.0)
        return tuple(port for port in working if port.link == link and port.rate == best)

    @property
    def memlock_suffices(self) -> bool:
        """Whether RDMA can register what it needs."""
        return self.memlock is None or self.memlock >= MEMLOCK_NEEDED

    @property
    def way_out(self) -> Interface | None:
        """The interface to meet other machines by: the default route's, else the fastest that is up."""
        up = [interface for interface in self.interfaces if interface.up]
        return max(up, key=lambda one: (one.default, one.speed or 0), default=None)


def read_fabric(root: str | Path = "/") -> Fabric:
    """The fabric of the machine whose `/sys`, `/proc` and `/dev` lie below `root`. What cannot be read is not there."""
    base = Path(root)
    nodes = _verbs(base)
    ports = [
        _port(base, device, port, nodes)
        for device in _folders(base / "sys/class/infiniband")
        for port in _folders(device / "ports")
    ]
    ports.sort(key=lambda port: (_natural(port.device), port.number))
    fabric = Fabric(tuple(ports), _interfaces(base), (), _memlock(base), _gpudirect(base))
    return Fabric(fabric.ports, fabric.interfaces, _cards(base, fabric.usable), fabric.memlock, fabric.gpudirect)


def _port(base: Path, device: Path, port: Path, nodes: dict[str, str]) -> Port:
    link = _text(port / "link_layer") or "InfiniBand"
    rate = float((re.match(r"[\d.]+", _text(port / "rate") or "") or ["0"])[0])
    gid, interface = _gid(port)
    unusable = None
    state = (_text(port / "state") or "").partition(": ")[2] or "unknown"
    if device.name not in nodes:
        unusable = "there is no device node for it in /dev/infiniband: this container was not given it"
    elif state != "ACTIVE":
        unusable = f"its link is {state}"
    elif rate == 0:
        unusable = "it says no rate"
    elif link == "InfiniBand" and int(_text(port / "lid") or "0", 0) == 0:
        unusable = "it has no LID: no subnet manager has seen it"
    elif link == "Ethernet" and gid is None:
        unusable = "it has no RoCE v2 address: give its network interface an IP address"
    return Port(
        device.name,
        int(port.name),
        link,
        rate,
        _pci(device / "device"),
        _number(device / "device/numa_node"),
        gid if link == "Ethernet" else None,
        interface,
        unusable,
    )


def _verbs(base: Path) -> dict[str, str]:
    """Device and its node, where there is one. A container sees all devices of its machine in sysfs, and has some in
    /dev."""
    found = {}
    for folder in _folders(base / "sys/class/infiniband_verbs"):
        device = _text(folder / "ibdev")
        if device and (base / "dev/infiniband" / folder.name).exists():
            found[device] = folder.name
    return found


def _gid(port: Path) -> tuple[int | None, str | None]:
    """Index of the RoCE v2 address to use and its interface: an IPv4 address before a routable IPv6 one, never
    link-local."""
    best: tuple[int, int, str | None] | None = None
    for path in sorted((port / "gids").glob("*"), key=lambda path: int(path.name)) if port.is_dir() else []:
        index, gid = int(path.name), _text(path)
        if not gid or _text(port / "gid_attrs/types" / path.name) != "RoCE v2":
            continue
        address = ipaddress.IPv6Address(gid)
        if int(address) == 0 or address.is_link_local:
            continue
        rank = 0 if address.ipv4_mapped else 1
        if best is None or rank < best[0]:
            best = rank, index, _text(port / "gid_attrs/ndevs" / path.name)
    return (best[1], best[2]) if best else (None, None)


def _interfaces(base: Path) -> tuple[Interface, ...]:
    default = None
    for line in (_text(base / "proc/net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == fields[7] == "00000000":
            default = fields[0]
            break
    found = []
    for folder in _folders(base / "sys/class/net"):
        if _INNER.match(folder.name) and folder.name != default:
            continue
        speed = _number(folder / "speed")
        up = _text(folder / "operstate") in ("up", "unknown")
        known = speed if speed and speed > 0 else None
        found.append(Interface(folder.name, up, known, folder.name == default))
    return tuple(sorted(found, key=lambda one: _natural(one.name)))


def _cards(base: Path, ports: tuple[Port, ...]) -> tuple[Card, ...]:
    found = []
    for folder in _folders(base / "sys/bus/pci/devices"):
        vendor, kind = _text(folder / "vendor") or "", _text(folder / "class") or ""
        if vendor not in (_NVIDIA, _AMD) or kind[:6] not in ("0x0302", "0x0300", "0x0380"):
            continue
        path, numa = _pci_path(folder), _number(folder / "numa_node")
        near = [(_distance(path, numa, base, port), port.name) for port in ports if port.pci]
        closest = min(near, key=lambda one: (_DISTANCES.index(one[0]), _natural(one[1])), default=(None, None))
        vendor = "NVIDIA" if vendor == _NVIDIA else "AMD"
        found.append(Card(folder.name, vendor, numa, closest[1], closest[0]))
    return tuple(sorted(found, key=lambda card: card.pci))


#: NCCL's words, from near to far: one PCI switch, several, a host bridge, one NUMA node, the machine.
_DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")


def _distance(path: list[str], numa: int | None, base: Path, port: Port) -> str:
    other = _pci_path(base / "sys/bus/pci/devices" / str(port.pci))
    common = 0
    for one, two in zip(path, other, strict=False):
        if one != two:
            break
        common += 1
    apart = max(len(path), len(other)) - common
    if common > 1:  # below the host bridge, which is the first
        return "PIX" if apart <= 2 else "PXB"
    if common == 1:
        return "PHB"
    return "NODE" if numa is not None and numa == port.numa and numa >= 0 else "SYS"


def _pci_path(device: Path) -> list[str]:
    """From the host bridge to a device: `pci0000:00`, bridges, itself."""
    parts = device.resolve().parts
    start = next((i for i, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f]{4}:[0-9a-f]{2}", part)), len(parts))
    return list(parts[start:])


def _memlock(base: Path) -> int | None:
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", _text(base / "proc/self/status") or "", re.MULTILINE)
    if capabilities and int(capabilities[1], 16) >> _CAP_IPC_LOCK & 1:
        return None
    limit = re.search(r"^Max locked memory\s+(\S+)", _text(base / "proc/self/limits") or "", re.MULTILINE)
    return None if limit is None or limit[1] == "unlimited" else int(limit[1])


def _gpudirect(base: Path) -> str | None:
    modules = base / "sys/module"
    if (modules / "nvidia_peermem").exists() or (modules / "nv_peer_mem").exists():
        return "nvidia_peermem"
    if "Open Kernel Module" in (_text(base / "proc/driver/nvidia/version") or "") and (modules / "ib_uverbs").exists():
        return "dmabuf"
    return "amdgpu" if (modules / "amdgpu").exists() and (modules / "ib_uverbs").exists() else None


def _pci(device: Path) -> str | None:
    name = device.resolve().name
    return name if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", name) else None


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(_text(path) or "")
    except ValueError:
        return None


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts mlx5_10 after mlx5_9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
