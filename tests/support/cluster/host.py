"""A machine of the cluster's own inside this one: PID, mount and network namespaces that end together.

Their first process waits on a pipe from us. When we end, however we end, the kernel ends every process in there and
with them the mounts, network interfaces and pods; what is left are a folder and empty cgroups, which the next start
removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..common import until

_PREFIX = "gpuspawner-cluster-"
_CGROUPS = Path("/sys/fs/cgroup")
#: A kubelet sets these for the whole machine unless they are so already; inside it sees them as it wants them.
_KERNEL_SETTINGS = {"vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1}
#: bash reaps whoever loses its parent; it goes on until the pipe closes.
_FIRST = r"""
set -e
mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns "$1/var-lib" "$1/.work"
mount -t overlay -o "lowerdir=/var/lib,upperdir=$1/var-lib,workdir=$1/.work" overlay /var/lib
ip link set lo up
sysctl -q -w net.ipv4.ip_forward=1
echo ready
read -r _ || true
"""


class Network:
    """Addresses of one cluster: 10.N.0.0/16, the machine itself at 10.N.255.2, seen from outside through an interface
    pair that ends with the namespace."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.link = f"gpuspawner{number}"
        self.outside, self.inside = f"10.{number}.255.1", f"10.{number}.255.2"
        self.all, self.pods, self.services = f"10.{number}.0.0/16", f"10.{number}.0.0/17", f"10.{number}.128.0/20"
        #: by Kubernetes' rule, the first address is the API server's, and by custom the tenth is DNS
        self.api, self.dns = f"10.{number}.128.1", f"10.{number}.128.10"

    @classmethod
    def make(cls, pid: int) -> Network:
        """Connect the network namespace of `pid` under the first free number."""
        routes = json.loads(_output("ip", "-j", "-4", "route"))
        taken = {route["dst"].split(".")[1] for route in routes if route["dst"].startswith("10.")}
        for number in range(200, 250):
            if str(number) in taken:
                continue
            net = cls(number)
            pair = ["ip", "link", "add", net.link, "type", "veth", "peer", "name", "eth0", "netns", str(pid)]
            if subprocess.run(pair, capture_output=True).returncode:
                continue  # somebody has just taken it
            within = ["nsenter", f"--net=/proc/{pid}/ns/net"]
            _run("ip", "addr", "add", f"{net.outside}/30", "dev", net.link)
            _run("ip", "link", "set", net.link, "up")
            _run(*within, "ip", "addr", "add", f"{net.inside}/30", "dev", "eth0")
            _run(*within, "ip", "link", "set", "eth0", "up")
            _run(*within, "ip", "route", "add", "default", "via", net.outside)
            _run("ip", "route", "add", net.all, "via", net.inside)
            return net
        raise AssertionError("no free network 10.200.0.0/16 to 10.249.0.0/16")


class Host:
    """The machine. `folder` holds all that it writes; `/run` and `/var/lib` are its own in there."""

    def __init__(self) -> None:
        clean()
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=os.environ.get("GPUSPAWNER_CLUSTER_FOLDER")))
        self.folder.chmod(0o755)
        self._lock = (self.folder / "owner").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.name = self.folder.name
        self._kernel_settings()
        command = ["unshare", "--pid", "--mount", "--net", "--uts", "--fork", "--kill-child", "--mount-proc"]
        self._unshare = subprocess.Popen(
            [*command, "bash", "-c", _FIRST, "bash", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us; we end it
        )
        assert self._unshare.stdout is not None
        if self._unshare.stdout.readline() != b"ready\n":
            raise AssertionError("no namespaces could be made for the cluster")
        self.pid = child_of(self._unshare.pid)
        for name in _KERNEL_SETTINGS:
            _run(*self.prefix(), "mount", "--bind", str(self.folder / "sys" / name), f"/proc/sys/{name}")
        self.cgroup = self._make_cgroups()
        self.network = Network.make(self.pid)

    def prefix(self) -> list[str]:
        """What goes before a command to run it in there. It runs as a child of that process, not instead of it."""
        spaces = [f"--{kind}=/proc/{self.pid}/ns/{file}" for kind, file in _SPACES]
        return ["nsenter", *spaces, "--"]

    def run(self, *command: str | Path, timeout: float = 120.0) -> str:
        """Run a command in there to its end and return what it prints. AssertionError with its words if it fails."""
        done = subprocess.run(
            [*self.prefix(), *map(str, command)], capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, f"{command[0]} failed: {(done.stderr or done.stdout)[-2000:]}"
        return done.stdout

    def popen(self, command: Sequence[str | Path], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a command in there; what it says goes to `log`."""
        with log.open("ab") as out:
            return subprocess.Popen(
                [*self.prefix(), *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=self.folder,
                start_new_session=True,
            )

    def close(self) -> None:
        """End everything in there and remove what is left of it."""
        for pipe in (self._unshare.stdin, self._unshare.stdout):
            assert pipe is not None
            pipe.close()
        self._unshare.wait(30)
        until(lambda: not _has_processes(self.name), 30, "the cluster's processes to end")
        _remove_cgroups(self.name)
        self._lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kernel_settings(self) -> None:
        for name, value in _KERNEL_SETTINGS.items():
            file = self.folder / "sys" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")

    def _make_cgroups(self) -> str:
        for hierarchy in _hierarchies():
            (hierarchy / self.name).mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):  # version 1 starts them empty, and then takes no process
                if (hierarchy / self.name / file).exists() and not (hierarchy / "cgroup.controllers").exists():
                    (hierarchy / self.name / file).write_text((hierarchy / file).read_text())
        return f"/{self.name}"


def child_of(pid: int) -> int:
    """The one child of a process, when it has come."""

    def child() -> int:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(text[0]) if text else 0

    return until(child, 10, f"process {pid} to have a child")


def clean() -> None:
    """Remove what clusters left whose process was killed."""
    for folder in Path(os.environ.get("GPUSPAWNER_CLUSTER_FOLDER") or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            with (folder / "owner").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                until(lambda name=folder.name: not _has_processes(name), 30, f"what ran in {folder} to end")
                _remove_cgroups(folder.name)
                shutil.rmtree(folder, ignore_errors=True)
        except (FileNotFoundError, BlockingIOError):
            continue  # just being made, or in use


_SPACES = (("pid", "pid_for_children"), ("mount", "mnt"), ("net", "net"), ("uts", "uts"))


def _hierarchies() -> list[Path]:
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]


def _folders(name: str) -> list[Path]:
    """All cgroups of a cluster, the innermost first."""
    found = []
    for hierarchy in _hierarchies():
        for path, _, _ in os.walk(hierarchy / name, topdown=False):
            found.append(Path(path))
    return found


def _has_processes(name: str) -> bool:
    for folder in _folders(name):
        with contextlib.suppress(OSError):
            if (folder / "cgroup.procs").read_text().strip():
                return True
    return False


def _remove_cgroups(name: str) -> None:
    for folder in _folders(name):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
