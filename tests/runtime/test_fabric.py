"""Fabrics as they are met: what is found, what NCCL is told, and what the preflight says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpuspawner_runtime import preflight
from gpuspawner_runtime.fabric import read_fabric
from gpuspawner_runtime.preflight import Counters, Proof, fallback, judge, read_counters
from gpuspawner_runtime.transport import plan
from runtime.machines import Machine

MAPPED = "0000:0000:0000:0000:0000:ffff:0a00:0001"
LOCAL = "fe80:0000:0000:0000:0000:0000:0000:0001"
GLOBAL = "2001:0db8:0000:0000:0000:0000:0000:0001"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def test_one_infiniband_port(machine: Machine) -> None:
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0")
    fabric = read_fabric(machine.root)
    assert [(port.name, port.rate, port.link) for port in fabric.usable] == [("mlx5_0:1", 400.0, "InfiniBand")]
    found = plan(fabric, {})
    assert found.transport == "InfiniBand"
    assert found.settings == {"NCCL_IB_HCA": "=mlx5_0:1", "NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    assert found.problems == ()


def test_eight_rails_with_a_slower_port_for_storage_and_a_dead_one(machine: Machine) -> None:
    """Exactly the eight rails, in order; each card's own by PCI distance; the others named with the reason."""
    for i in range(8):
        bus, numa = f"pci0000:{i + 1:02x}", i // 4
        switch = f"{bus}/0000:{i + 1:02x}:01.0"
        machine.card(f"{switch}/0000:{i + 1:02x}:02.0/0000:{0x40 + i:02x}:00.0", numa)
        machine.hca(
            f"mlx5_{i if i < 2 else i + 1}", path=f"{switch}/0000:{i + 1:02x}:03.0/0000:{0x60 + i:02x}:00.0", numa=numa
        )
    machine.hca("mlx5_2", path="pci0000:20/0000:20:01.0/0000:80:00.0", rate="100 Gb/sec (2X HDR)")
    machine.hca("mlx5_10", path="pci0000:21/0000:21:01.0/0000:81:00.0", state="1: DOWN")
    machine.write("sys/module/nvidia_peermem/version", "1")
    fabric = read_fabric(machine.root)
    found = plan(fabric, {})
    assert found.settings["NCCL_IB_HCA"] == "=" + ",".join(f"mlx5_{i}:1" for i in (0, 1, 3, 4, 5, 6, 7, 8))
    assert found.settings["NCCL_NET_GDR_LEVEL"] == "PIX"
    assert [card.port for card in fabric.cards] == [f"mlx5_{i}:1" for i in (0, 1, 3, 4, 5, 6, 7, 8)]
    assert [problem.what.partition(" is left out: ")[::2] for problem in found.problems] == [
        ("mlx5_2:1", "InfiniBand at 100 Gbit/s beside InfiniBand at 400."),
        ("mlx5_10:1", "its link is DOWN."),
    ]


def test_phantom_ports_are_left_out(machine: Machine) -> None:
    """A container sees all devices of its machine in sysfs; only those with a device node are its own."""
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0", node=False)
    machine.hca("mlx5_1", path="pci0000:00/0000:00:02.0/0000:02:00.0")
    machine.hca("mlx5_2", path="pci0000:00/0000:00:03.0/0000:03:00.0", lid="0x0")
    found = plan(read_fabric(machine.root), {})
    assert found.settings["NCCL_IB_HCA"] == "=mlx5_1:1"
    assert "this container was not given it" in found.problems[0].what
    assert "no subnet manager" in found.problems[1].what


@pytest.mark.parametrize(
    ("gids", "index"),
    [
        ({0: (LOCAL, "IB/RoCE v1"), 1: (LOCAL, "RoCE v2"), 2: (MAPPED, "IB/RoCE v1"), 3: (MAPPED, "RoCE v2")}, "3"),
        ({0: (LOCAL, "RoCE v2"), 1: (GLOBAL, "RoCE v2"), 5: (MAPPED, "RoCE v2")}, "5"),
        ({0: (LOCAL, "RoCE v2"), 10: (GLOBAL, "RoCE v2")}, "10"),
    ],
)
def test_roce_by_the_index_of_its_routable_address(
    machine: Machine, gids: dict[int, tuple[str, str]], index: str
) -> None:
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0", link="Ethernet", gids=gids)
    found = plan(read_fabric(machine.root), {})
    assert found.transport == "RoCE"
    assert found.settings["NCCL_IB_GID_INDEX"] == index


def test_roce_ports_with_different_indexes(machine: Machine) -> None:
    for i, index in enumerate((3, 5)):
        gids = {index: (MAPPED, "RoCE v2")}
        machine.hca(f"mlx5_{i}", path=f"pci0000:00/0000:00:0{i}.0/0000:0{i}:00.0", link="Ethernet", gids=gids)
    found = plan(read_fabric(machine.root), {})
    assert "NCCL_IB_GID_INDEX" not in found.settings
    assert found.settings["NCCL_IB_ROCE_VERSION_NUM"] == "2"


def test_roce_without_an_address(machine: Machine) -> None:
    gids = {0: (LOCAL, "IB/RoCE v1"), 1: (LOCAL, "RoCE v2")}
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0", link="Ethernet", gids=gids)
    found = plan(read_fabric(machine.root), {})
    assert found.transport == "sockets"
    assert "no RoCE v2 address" in found.problems[0].what


def test_infiniband_and_ethernet_are_not_mixed(machine: Machine) -> None:
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0", rate="200 Gb/sec (4X HDR)")
    gids = {3: (MAPPED, "RoCE v2")}
    machine.hca("mlx5_1", path="pci0000:00/0000:00:02.0/0000:02:00.0", link="Ethernet", gids=gids)
    assert plan(read_fabric(machine.root), {}).settings["NCCL_IB_HCA"] == "=mlx5_0:1"


def test_ethernet_only(machine: Machine) -> None:
    found = plan(read_fabric(machine.root), {})
    assert found.transport == "sockets"
    assert found.settings == {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0"}


def test_without_a_default_route_the_fastest_interface(machine: Machine) -> None:
    machine.write("proc/net/route", "Iface\tDestination")
    machine.interface("ens5", 100_000)
    machine.interface("ens6", 200_000, state="down")
    assert plan(read_fabric(machine.root), {}).settings["GLOO_SOCKET_IFNAME"] == "ens5"


def test_nothing_readable(tmp_path: Path) -> None:
    fabric = read_fabric(tmp_path / "nowhere")
    assert fabric.ports == fabric.interfaces == fabric.cards == ()
    assert plan(fabric, {}).settings == {"NCCL_IB_DISABLE": "1"}


@pytest.mark.parametrize(
    ("card", "distance"),
    [
        ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", "PIX"),
        ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:05:00.0/0000:06:00.0/0000:07:00.0", "PXB"),
        ("pci0000:00/0000:00:05.0/0000:09:00.0", "PHB"),
        ("pci0000:40/0000:40:01.0/0000:41:00.0", "NODE"),
    ],
)
def test_distance_of_card_and_port(machine: Machine, card: str, distance: str) -> None:
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:03:00.0")
    machine.card(card)
    machine.write("sys/module/nvidia_peermem/version", "1")
    fabric = read_fabric(machine.root)
    assert fabric.cards[0].distance == distance
    assert plan(fabric, {}).settings["NCCL_NET_GDR_LEVEL"] == distance


def test_far_cards_and_missing_gpudirect(machine: Machine) -> None:
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0")
    machine.card("pci0000:40/0000:40:01.0/0000:41:00.0", numa=1)
    found = plan(read_fabric(machine.root), {})
    assert read_fabric(machine.root).cards[0].distance == "SYS"
    assert found.settings["NCCL_NET_GDR_LEVEL"] == "LOC"
    assert "modprobe nvidia-peermem" in found.problems[0].mend


def test_what_the_user_set_stays(machine: Machine) -> None:
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0")
    found = plan(read_fabric(machine.root), {"NCCL_IB_HCA": "=mlx5_7:1", "NCCL_SOCKET_IFNAME": "bond0"})
    assert found.kept == {"NCCL_IB_HCA": "=mlx5_7:1", "NCCL_SOCKET_IFNAME": "bond0"}
    assert "NCCL_IB_HCA" not in found.settings
    assert [problem.what for problem in found.problems] == [
        "NCCL_IB_HCA names mlx5_7, and no usable port is called so.",
        "NCCL_SOCKET_IFNAME names bond0; there are: eth0.",
    ]


@pytest.mark.case("runtime-17")
def test_memlock_too_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path / "machine", memlock="65536")
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0")
    assert preflight.main(["--root", str(machine.root)]) == 1
    said = capsys.readouterr().out
    assert "TO MEND: Only 64 KiB of memory may be locked" in said
    assert "--ulimit memlock=-1" in said
    assert "LimitMEMLOCK=infinity" in said
    assert "NCCL_IB_DISABLE=1" in said


def test_with_cap_ipc_lock_the_limit_does_not_count(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine", memlock="65536")
    machine.write("proc/self/status", "CapEff:\t000001ffffffffff")
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0")
    assert plan(read_fabric(machine.root), {}).transport == "InfiniBand"


@pytest.mark.case("runtime-17")
def test_a_fall_back_to_sockets_is_seen_by_the_counters(machine: Machine) -> None:
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0", sent=1000)
    fabric = read_fabric(machine.root)

    def interfaces(sent: int) -> None:
        fields = f"eth0: 1 2 0 0 0 0 0 0 {sent} 4 0 0 0 0 0 0"
        machine.write("proc/net/dev", f"Inter-|\n face |\n    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n  {fields}")

    interfaces(500)
    before = read_counters(fabric, machine.root)
    assert before == Counters({"mlx5_0:1": 4000}, {"eth0": 500})
    interfaces(500 + 100_000_000)
    proof = judge(before, read_counters(fabric, machine.root), 90_000_000)
    assert proof == Proof("sockets", 0, 100_000_000, 90_000_000)
    (problem,) = fallback(fabric, proof, {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}, nccl=True)
    assert problem.fatal
    assert problem.what.startswith("NCCL fell back to sockets: mlx5_0:1 can be used, and yet 100 MB went by sockets")
    assert "nset NCCL_IB_DISABLE" in problem.mend
    assert "unset NCCL_NET" in problem.mend
    (note,) = fallback(fabric, proof, {}, nccl=False)
    assert not note.fatal

    machine.count("mlx5_0", 1000 + 25_000_000)
    proof = judge(before, read_counters(fabric, machine.root), 90_000_000)
    assert proof.carried == "rdma"
    assert fallback(fabric, proof, {}, nccl=True) == []


def test_what_the_counters_do_not_show_is_unknown() -> None:
    flat = Counters({"mlx5_0:1": 0}, {"eth0": 0})
    assert judge(flat, flat, 1000).carried == "unknown"
    assert judge(flat, flat, 0).carried == "nothing"


def test_as_json(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0")
    assert preflight.main(["--root", str(machine.root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["transport"] == "InfiniBand"
    assert found["fabric"]["ports"][0]["rate"] == 400.0
    assert found["proof"] is None


def test_as_text(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0")
    assert preflight.main(["--root", str(machine.root)]) == 0
    said = capsys.readouterr().out
    assert "mlx5_0:1  InfiniBand 400 Gbit/s, NUMA 0: used" in said
    assert "Nothing has to be mended." in said


def test_a_size_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        preflight.main(["--megabytes", "0"])
    assert "--megabytes is 0: 1 to 10000" in capsys.readouterr().err
