"""What NCCL and gloo should be told about a fabric, and what stands in the way, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuspawner_runtime.fabric import MEMLOCK_NEEDED, Fabric

_FARTHEST = ("PIX", "PXB", "PHB", "NODE")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and how to mend it. `fatal`: RDMA cannot work with it."""

    what: str
    mend: str
    fatal: bool = False


@dataclass(frozen=True)
class Plan:
    """`transport`: `InfiniBand`, `RoCE` or `sockets`; `settings`: environment variables; `kept`: those that were set
    already and stay as they are although the plan has another value."""

    transport: str
    settings: dict[str, str]
    kept: dict[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def plan(fabric: Fabric, environment: Mapping[str, str]) -> Plan:
    """Settings for what is there: exact ports, the address index for RoCE, the interface to meet by, GPUDirect's reach.

    What the user has set stays. The variables are those of
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; RCCL reads the same.
    """
    usable, problems = fabric.usable, [*_port_problems(fabric)]
    wanted: dict[str, str] = {}
    out = fabric.way_out
    if out is not None:
        wanted |= {"NCCL_SOCKET_IFNAME": f"={out.name}", "GLOO_SOCKET_IFNAME": out.name}
    if usable and not fabric.memlock_suffices:
        problems.append(_memlock_problem(fabric))
    if not usable or not fabric.memlock_suffices:
        wanted["NCCL_IB_DISABLE"] = "1"
        transport = "sockets"
    else:
        transport = "RoCE" if usable[0].link == "Ethernet" else "InfiniBand"
        wanted["NCCL_IB_HCA"] = "=" + ",".join(port.name for port in usable)
        indexes = {port.gid_index for port in usable}
        if transport == "RoCE" and len(indexes) == 1:
            wanted["NCCL_IB_GID_INDEX"] = str(indexes.pop())
        elif transport == "RoCE":  # they differ from port to port, so NCCL (2.21 and later) chooses by these two
            wanted |= {"NCCL_IB_ROCE_VERSION_NUM": "2", "NCCL_IB_ADDR_FAMILY": "AF_INET"}
        wanted |= _gpudirect(fabric, problems)
    kept = {name: environment[name] for name, value in wanted.items() if environment.get(name, value) != value}
    problems += _user_problems(fabric, environment, transport)
    settings = {name: value for name, value in wanted.items() if name not in kept}
    return Plan(transport, settings, kept, tuple(problems))


def _gpudirect(fabric: Fabric, problems: list[Problem]) -> dict[str, str]:
    if not fabric.cards:
        return {}
    if fabric.gpudirect is None:
        what = "Without GPUDirect every message goes through the host's memory."
        mend = "On the machine: modprobe nvidia-peermem, or NVIDIA's open kernel modules, which have dma-buf."
        problems.append(Problem(what, mend))
        return {"NCCL_NET_GDR_LEVEL": "LOC"}
    distances = [_FARTHEST.index(card.distance) for card in fabric.cards if card.distance in _FARTHEST]
    return {"NCCL_NET_GDR_LEVEL": _FARTHEST[max(distances)]} if distances else {}


def _port_problems(fabric: Fabric) -> list[Problem]:
    found = []
    for port in fabric.ports:
        if port.unusable is not None:
            found.append(Problem(f"{port.name} is left out: {port.unusable}.", "Nothing, if you do not need it."))
        elif port not in fabric.usable:
            best = fabric.usable[0]
            text = f"{port.name} is left out: {port.link} at {port.rate:g} Gbit/s beside {best.link} at {best.rate:g}."
            found.append(Problem(text, "Nothing: one slow port would hold up all."))
    return found


def _memlock_problem(fabric: Fabric) -> Problem:
    return Problem(
        f"Only {(fabric.memlock or 0) // 1024} KiB of memory may be locked, and RDMA registers more than "
        f"{MEMLOCK_NEEDED // 1024**2} MiB: ibv_reg_mr would fail with 'Cannot allocate memory'.",
        "Start the session with an unlimited memlock: docker run --ulimit memlock=-1; LimitMEMLOCK=infinity in the "
        "systemd unit (of the container runtime, on Kubernetes); '* - memlock unlimited' in "
        "/etc/security/limits.conf for logins.",
        fatal=True,
    )


def _user_problems(fabric: Fabric, environment: Mapping[str, str], transport: str) -> list[Problem]:
    found = []
    if transport != "sockets" and environment.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        found.append(Problem("NCCL_IB_DISABLE is set, so NCCL uses sockets.", "Unset NCCL_IB_DISABLE.", fatal=True))
    listed = environment.get("NCCL_IB_HCA", "")
    names = [name.partition(":")[0] for name in listed.lstrip("=^").split(",") if name]
    if names and listed.startswith("="):
        missing = [name for name in names if name not in {port.device for port in fabric.usable}]
        if missing:
            text = f"NCCL_IB_HCA names {', '.join(missing)}, and no usable port is called so."
            found.append(Problem(text, "Unset NCCL_IB_HCA, or name ports that are listed above.", fatal=True))
    name = environment.get("NCCL_SOCKET_IFNAME", "").lstrip("=")
    if name and not name.startswith("^") and not any(one.name.startswith(name) for one in fabric.interfaces):
        known = ", ".join(one.name for one in fabric.interfaces) or "none"
        found.append(Problem(f"NCCL_SOCKET_IFNAME names {name}; there are: {known}.", "Unset NCCL_SOCKET_IFNAME."))
    return found
