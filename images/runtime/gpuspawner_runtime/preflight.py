"""`python -m gpuspawner_runtime.preflight`: what the fabric is, what NCCL will be told, and by counters what really
carried bytes.

Alone it reads and explains. Started on all machines by `torchrun --no-python … python -m gpuspawner_runtime.preflight`
(or `torchrun … -m gpuspawner_runtime.preflight`) it sends some data too, and compares the counters of ports and
interfaces. The status is 0 if nothing has to be mended.
"""

from __future__ import annotations

import argparse
import ctypes.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuspawner_runtime.fabric import Fabric, read_fabric
from gpuspawner_runtime.transport import Plan, Problem, plan

#: port_xmit_data counts in words of four bytes (Documentation/ABI/stable/sysfs-class-infiniband).
_WORD = 4
#: How much of what was sent a counter must show to be the way it went.
_MOST = 0.5


@dataclass(frozen=True)
class Counters:
    """Bytes sent so far: by each RDMA port, and by each interface."""

    ports: dict[str, int]
    interfaces: dict[str, int]


@dataclass(frozen=True)
class Proof:
    """What carried the bytes between machines: `rdma`, `sockets`, `nothing` (all on one machine) or `unknown`.
    Bytes that the counters grew by, and that were sent at least."""

    carried: str
    rdma: int
    sockets: int
    sent: int


def read_counters(fabric: Fabric, root: str | Path = "/") -> Counters:
    """The counters now. Interfaces by /proc/net/dev, which is that of the process's own network namespace."""
    base = Path(root)
    ports = {}
    for port in fabric.ports:
        path = base / "sys/class/infiniband" / port.device / "ports" / str(port.number) / "counters/port_xmit_data"
        try:
            ports[port.name] = int(path.read_text()) * _WORD
        except (OSError, ValueError):
            continue
    interfaces = {}
    try:
        for line in (base / "proc/net/dev").read_text().splitlines()[2:]:
            name, _, fields = line.partition(":")
            interfaces[name.strip()] = int(fields.split()[8])
    except (OSError, ValueError, IndexError):
        pass
    interfaces.pop("lo", None)
    return Counters(ports, interfaces)


def _grown(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    return sum(after[name] - count for name, count in before.items() if name in after)


def judge(before: Counters, after: Counters, sent: int) -> Proof:
    """What carried `sent` bytes, which left this machine between the two readings."""
    rdma = _grown(before.ports, after.ports)
    sockets = _grown(before.interfaces, after.interfaces)
    if sent == 0:
        return Proof("nothing", rdma, sockets, sent)
    if rdma >= _MOST * sent:
        return Proof("rdma", rdma, sockets, sent)
    return Proof("sockets" if sockets >= _MOST * sent else "unknown", rdma, sockets, sent)


def fallback(fabric: Fabric, proof: Proof, environment: Mapping[str, str], nccl: bool) -> list[Problem]:
    """RDMA is there, and was not what carried the bytes: why that may be."""
    if proof.carried != "sockets" or not fabric.usable:
        return []
    names = ", ".join(port.name for port in fabric.usable)
    sockets, rdma = proof.sockets / 1e6, proof.rdma / 1e6
    text = f"{names} can be used, and yet {sockets:.0f} MB went by sockets and {rdma:.0f} MB by RDMA."
    if not nccl:
        mend = "The backend is gloo, which knows sockets only. With a card for each process it is NCCL."
        return [Problem(text, mend)]
    reasons = []
    if not fabric.memlock_suffices:
        reasons.append("raise memlock (above)")
    if environment.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        reasons.append("unset NCCL_IB_DISABLE")
    if ctypes.util.find_library("ibverbs") is None:
        reasons.append("install libibverbs (Debian: libibverbs1 ibverbs-providers) in the image")
    if environment.get("NCCL_NET", "") == "Socket":
        reasons.append("unset NCCL_NET")
    if not reasons:
        reasons.append("run once with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET: it says why NET/IB was not used")
    mend = "; ".join(reasons)
    return [Problem(f"NCCL fell back to sockets: {text}", mend[0].upper() + mend[1:] + ".", fatal=True)]


def describe(fabric: Fabric, found: Plan) -> list[str]:
    """What is there and what will be set, for people."""
    lines = ["RDMA ports:"] if fabric.ports else ["RDMA ports: none"]
    for port in fabric.ports:
        use = "used" if port in fabric.usable else "not used"
        gid = f", GID index {port.gid_index}" if port.gid_index is not None else ""
        lines.append(f"  {port.name}  {port.link} {port.rate:g} Gbit/s{gid}, NUMA {_known(port.numa)}: {use}")
    out = fabric.way_out
    lines.append(f"Interface to meet by: {out.name if out else 'none that is up'}")
    for card in fabric.cards:
        near = f"nearest port {card.port} ({card.distance})" if card.port else "no port near"
        lines.append(f"Card {card.pci}: {card.vendor}, NUMA {_known(card.numa)}, {near}")
    lines.append(f"GPUDirect: {fabric.gpudirect or 'no'}")
    memlock = "unlimited" if fabric.memlock is None else f"{fabric.memlock // 1024} KiB"
    lines.append(f"Memory that may be locked: {memlock}")
    lines.append(f"Transport: {found.transport}")
    lines += [f"  {name}={value}" for name, value in sorted(found.settings.items())]
    lines += [f"  {name}={value}  (yours, kept)" for name, value in sorted(found.kept.items())]
    return lines


def _known(number: int | None) -> str:
    return "unknown" if number is None or number < 0 else str(number)


def send(fabric: Fabric, megabytes: int, root: str | Path, backend: str | None) -> tuple[Proof, str]:
    """All-reduce over the world that torchrun made, between two readings of the counters. The proof, and the
    backend."""
    import torch
    import torch.distributed as dist

    from gpuspawner_runtime.distributed import distributed

    world = distributed(backend, root=root)
    hosts: list[Any] = [None] * world.size
    dist.all_gather_object(hosts, _host())
    device = world.device if "nccl" in str(world.backend) else "cpu"
    data = torch.ones(megabytes * 1000**2 // 4, device=device)
    dist.all_reduce(data)  # connections are made here, and counted nowhere
    world.barrier()
    before = read_counters(fabric, root)
    rounds = 4
    for _ in range(rounds):
        data.fill_(1.0)
        dist.all_reduce(data)
    if device != "cpu":
        torch.cuda.synchronize()
    right = bool((data == world.size).all())
    world.barrier()
    after = read_counters(fabric, root)
    if not right:
        raise SystemExit("The sum is wrong: the transport damages data. Do not train with it.")
    # Each machine must send at least its own part once in each round, whatever the algorithm.
    crossing = rounds * megabytes * 1000**2 if len(set(hosts)) > 1 else 0
    proof = judge(before, after, crossing)
    world.barrier()
    return proof, str(world.backend)


def _host() -> str:
    """This machine, as far as its network is concerned."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"  # noqa: PTH115 (it is no path)
    except OSError:
        return os.uname().nodename


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuspawner_runtime.preflight", description="What carries the bytes."
    )
    parser.add_argument(
        "--root", default="/", help="where /sys, /proc and /dev lie (to try it on the copy of a machine)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--megabytes", type=int, default=64, help="what is summed over all processes (default 64)")
    parser.add_argument("--backend", choices=["gloo", "nccl"], help="default: as distributed() chooses")
    given = parser.parse_args(arguments)
    if not 1 <= given.megabytes <= 10_000:
        parser.error(f"--megabytes is {given.megabytes}: 1 to 10000")
    fabric = read_fabric(given.root)
    found = plan(fabric, os.environ)
    problems = list(found.problems)
    proof = None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        before = dict(os.environ)
        proof, backend = send(fabric, given.megabytes, given.root, given.backend)
        problems += fallback(fabric, proof, before, "nccl" in backend)
    if given.json:
        fields = {"fabric": asdict(fabric), "plan": asdict(found), "proof": asdict(proof) if proof else None}
        print(json.dumps({**fields, "problems": [asdict(problem) for problem in problems]}))
    elif int(os.environ.get("LOCAL_RANK", "0")) == 0:
        _show(fabric, found, proof, problems)
    return int(any(problem.fatal for problem in problems))


def _show(fabric: Fabric, found: Plan, proof: Proof | None, problems: list[Problem]) -> None:
    for line in describe(fabric, found):
        print(line)
    if proof is None:
        print("Nothing was sent. For proof, start this on all machines with torchrun.")
    elif proof.carried == "nothing":
        print("All processes are on one machine: nothing had to cross the fabric.")
    else:
        print(
            f"Sent between machines: at least {proof.sent / 1e6:.0f} MB. Counted: {proof.rdma / 1e6:.0f} MB by RDMA, "
            f"{proof.sockets / 1e6:.0f} MB by interfaces. It went by: {proof.carried}."
        )
    for problem in problems:
        print(f"{'TO MEND' if problem.fatal else 'Note'}: {problem.what}\n  {problem.mend}")
    if not any(problem.fatal for problem in problems):
        print("Nothing has to be mended.")


if __name__ == "__main__":
    sys.exit(main())
