"""Processes that train together: by torchrun on one machine, over two network namespaces, and alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpuspawner_runtime import RuntimeFault, distributed

RUN = [sys.executable, "-m", "torch.distributed.run"]
SUM = """
import json, os, sys
import torch, torch.distributed as dist
from gpuspawner_runtime import distributed
world = distributed(timeout=120)
assert distributed() is world, "calling it again gives the same world"
total = torch.tensor([world.rank + 1.0])
dist.all_reduce(total)
world.barrier()
told = {name: os.environ.get(name) for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")}
# in one write, line end and all: both write into the same pipe
os.write(1, (json.dumps([world.rank, world.size, world.backend, total.item(), told]) + chr(10)).encode())
world.close()
assert not dist.is_initialized()
"""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("alone")
def test_in_a_notebook_there_is_nothing_to_do() -> None:
    import torch.distributed as dist

    world = distributed()
    assert (world.rank, world.size, world.backend) == (0, 1, None)
    assert str(world) == f"one process on {world.device}"
    world.barrier()
    world.close()
    assert not dist.is_initialized()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is None"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is 'one'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE 2"),
    ],
)
def test_a_launcher_that_makes_no_sense(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeFault, match=message):
        distributed()


@pytest.mark.usefixtures("alone")
def test_strict_refuses_to_go_on_by_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.machines import Machine

    machine = Machine(tmp_path / "machine", memlock="65536")
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(RuntimeFault, match="Only 64 KiB of memory may be locked"):
        distributed("nccl", strict=True, root=machine.root)


def test_two_processes_by_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "sum.py"
    script.write_text(SUM)
    done = subprocess.run(
        [*RUN, "--standalone", "--nproc-per-node=2", str(script)],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = sorted(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    nothing = {"NCCL_SOCKET_IFNAME": None, "GLOO_SOCKET_IFNAME": None}
    assert found == [[0, 2, "gloo", 3.0, nothing], [1, 2, "gloo", 3.0, nothing]]


def _refused() -> str | None:
    """Why network namespaces cannot be made here, if they cannot."""
    if os.geteuid() != 0:
        return "network namespaces are made by root"
    if shutil.which("ip") is None:
        return "there is no `ip` (Debian: iproute2)"
    name = f"gpus-{uuid.uuid4().hex[:8]}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return None if tried.returncode == 0 else f"network namespaces are refused here: {tried.stderr.strip()}"


@pytest.fixture
def two_machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces joined by a cable, as two machines with one interface `net0` each."""
    reason = _refused()
    if reason:
        pytest.skip(reason)
    mark = uuid.uuid4().hex[:6]
    names = (f"gpus-{mark}-a", f"gpus-{mark}-b")
    ends = (f"g{mark}a", f"g{mark}b")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for i, (name, end) in enumerate(zip(names, ends, strict=True)):
            ip("link", "set", end, "netns", name, "name", "net0")
            ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "net0")
            ip("-n", name, "link", "set", "net0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:  # the cable goes with the first end
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def on_both(machines: tuple[str, str], arguments: list[str]) -> list[str]:
    """Run a module or script with one process on each of two machines; what each printed."""
    started = []
    for rank, name in enumerate(machines):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        env |= {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29507"}
        command = ["ip", "netns", "exec", name, sys.executable, *arguments]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        ended = [process.communicate(timeout=170) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0, 0], ended
    return [out for out, _ in ended]


def test_over_two_network_namespaces(two_machines: tuple[str, str], tmp_path: Path) -> None:
    """Gloo is told the interface that leads to the other machine: by the host's name it would look at the loopback."""
    script = tmp_path / "sum.py"
    script.write_text(SUM)
    found = [json.loads(out.splitlines()[-1]) for out in on_both(two_machines, [str(script)])]
    told = {"NCCL_SOCKET_IFNAME": None, "GLOO_SOCKET_IFNAME": "net0"}
    assert found == [[0, 2, "gloo", 3.0, told], [1, 2, "gloo", 3.0, told]]


@pytest.mark.case("runtime-17")
def test_the_preflight_proves_by_counters_what_carried_the_bytes(two_machines: tuple[str, str], tmp_path: Path) -> None:
    """With an RDMA port (laid out in a folder) that could be used, and gloo, whose bytes really go through the
    interface."""
    from runtime.machines import Machine

    machine = Machine(tmp_path / "machine")
    machine.hca("mlx5_0", path="pci0000:00/0000:00:01.0/0000:01:00.0")
    machine.interface("net0", 10_000)
    machine.default_route("net0")
    (machine.root / "proc/net/dev").symlink_to("/proc/self/net/dev")
    arguments = ["-m", "gpuspawner_runtime.preflight", "--root", str(machine.root), "--megabytes", "8"]
    for out in on_both(two_machines, arguments):
        assert "Sent between machines: at least 32 MB." in out
        assert "It went by: sockets." in out
        assert "Note: mlx5_0:1 can be used, and yet" in out
        assert "The backend is gloo, which knows sockets only." in out


def test_rdma_in_software(two_machines: tuple[str, str]) -> None:
    """A RoCE port in software on the cable: found, with the index of its address."""
    rdma = shutil.which("rdma")
    if rdma is None or not Path("/sys/class/infiniband").exists():
        pytest.skip("this kernel has no InfiniBand subsystem, so no RoCE in software (CONFIG_RDMA_RXE)")
    run = ["ip", "netns", "exec", two_machines[0]]
    add = [*run, rdma, "link", "add", "rxe0", "type", "rxe", "netdev", "net0"]
    made = subprocess.run(add, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no RoCE in software here: {made.stderr.decode().strip()}")
    try:
        command = [*run, sys.executable, "-m", "gpuspawner_runtime.preflight", "--json"]
        found = json.loads(subprocess.run(command, capture_output=True, check=False).stdout)
        assert found["plan"]["transport"] == "RoCE"
        assert found["plan"]["settings"]["NCCL_IB_HCA"] == "=rxe0:1"
        assert int(found["plan"]["settings"]["NCCL_IB_GID_INDEX"]) > 0
    finally:
        subprocess.run([*run, rdma, "link", "del", "rxe0"], check=False)
