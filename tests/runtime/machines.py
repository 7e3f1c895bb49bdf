"""Machines laid out in a folder: the parts of /sys, /proc and /dev that the fabric is read from."""

from __future__ import annotations

import os
from pathlib import Path

UNLIMITED = "unlimited"


class Machine:
    """A machine below `root`. Made with one Ethernet interface that has the default route."""

    def __init__(self, root: Path, memlock: str = UNLIMITED) -> None:
        self.root = root
        for folder in ("class/infiniband", "class/net", "bus/pci/devices", "module"):
            (root / "sys" / folder).mkdir(parents=True)
        for folder in ("dev/infiniband", "proc/net"):
            (root / folder).mkdir(parents=True)
        self.write(
            "proc/self/limits",
            f"Limit  Soft Limit  Hard Limit\nMax locked memory         {memlock}   {memlock}   bytes",
        )
        self.write("proc/self/status", "Name:\tpython\nCapEff:\t00000000a80425fb")
        self.default_route("eth0")
        self.interface("lo", 0)
        self.interface("docker0", 10_000)
        self.interface("eth0", 25_000)

    def default_route(self, interface: str) -> None:
        names = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask"
        self.write("proc/net/route", f"{names}\n{interface}\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text + "\n")

    def interface(self, name: str, speed: int, state: str = "up") -> None:
        self.write(f"sys/class/net/{name}/operstate", state)
        self.write(f"sys/class/net/{name}/speed", str(speed))

    def pci(self, path: str, **files: str) -> str:
        """A PCI device at `pci0000:00/0000:00:01.0/0000:01:00.0`; its own address."""
        folder = self.root / "sys/devices" / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / {"kind": "class"}.get(name, name)).write_text(text + "\n")
        link = self.root / "sys/bus/pci/devices" / folder.name
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(folder, link.parent))
        return folder.name

    def card(self, path: str, numa: int = 0) -> str:
        return self.pci(path, vendor="0x10de", kind="0x030200", numa_node=str(numa))

    def hca(
        self,
        name: str,
        *,
        path: str,
        rate: str = "400 Gb/sec (4X NDR)",
        link: str = "InfiniBand",
        state: str = "4: ACTIVE",
        lid: str = "0x3",
        numa: int = 0,
        gids: dict[int, tuple[str, str]] | None = None,
        node: bool = True,
        sent: int = 0,
    ) -> None:
        """An RDMA device with one port. `gids`: address and type by index; `node`: whether /dev has it; `sent`: in
        words."""
        address = self.pci(path, vendor="0x15b3", kind="0x020700", numa_node=str(numa))
        at = f"sys/class/infiniband/{name}"
        (self.root / at).mkdir()
        (self.root / at / "device").symlink_to(f"../../../bus/pci/devices/{address}")
        files = {"state": state, "link_layer": link, "rate": rate, "lid": lid, "counters/port_xmit_data": str(sent)}
        for file, text in files.items():
            self.write(f"{at}/ports/1/{file}", text)
        for index, (gid, kind) in (gids or {0: ("fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1")}).items():
            self.write(f"{at}/ports/1/gids/{index}", gid)
            self.write(f"{at}/ports/1/gid_attrs/types/{index}", kind)
            self.write(f"{at}/ports/1/gid_attrs/ndevs/{index}", "eth2")
        number = len(list((self.root / "sys/class/infiniband").iterdir())) - 1
        self.write(f"sys/class/infiniband_verbs/uverbs{number}/ibdev", name)
        if node:
            self.write(f"dev/infiniband/uverbs{number}", "")

    def count(self, name: str, words: int) -> None:
        """Let a port have sent so many words of four bytes."""
        self.write(f"sys/class/infiniband/{name}/ports/1/counters/port_xmit_data", str(words))
