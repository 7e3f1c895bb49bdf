"""A cluster for tests: one of our own, or one that exists."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from ..common import until
from . import build, control, images, node
from .api import Api, Object
from .certificates import Authority
from .host import Host
from .parts import Part

#: A kubeconfig of a cluster that exists: the tests use it and build and start nothing.
VARIABLE = "GPUSPAWNER_TEST_KUBECONFIG"
#: The real node of our own cluster.
NODE = "node-1"
_CNI = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_SIMULATED = {"kwok.x-k8s.io/node": "fake"}


class Cluster:
    """What every test may use. `api` is an administrator's."""

    #: whether its parts are ours to kill, and its node's files to read
    own = False

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.api = Api(kubeconfig)
        self._going: list[str] = []

    def kubectl(self, *words: str, timeout: float = 120.0) -> str:
        """What kubectl prints. AssertionError with its words if it fails."""
        program = shutil.which("kubectl") if not self.own else None
        command = [program or build.programs(["kubernetes"])["kubectl"], f"--kubeconfig={self.kubeconfig}", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, f"kubectl {words[0]}: {done.stderr.strip()}"
        return done.stdout

    @contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """A namespace, going afterwards with all that is in it; it is waited for by who needs that name again."""
        until(lambda: self.api.find("Namespace", name) is None, 120, f"an older namespace {name} to go")
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        until(lambda: self.api.find("ServiceAccount", "default", name), 60, "its service account")
        try:
            yield name
        finally:
            self.api.delete("Namespace", name)
            self._going.append(name)

    def close(self) -> None:
        """Wait until nothing of ours is left in it, and close its connections."""
        for name in self._going:
            until(lambda name=name: self.api.find("Namespace", name) is None, 120, f"the namespace {name} to go")
        self.api.close()


class OwnCluster(Cluster):
    """One that was started here. `parts` by name, each of which may be killed and started again. `host` is the machine
    that they run on. `with_node`: whether there is a kubelet, so that pods run."""

    own = True

    def __init__(
        self, host: Host, *, with_node: bool, scheduler_requests: int | None, api_flags: Sequence[str] = ()
    ) -> None:
        self.host = host
        self.binaries = build.programs(["etcd", "kubernetes", *(["containerd"] if with_node else [])])
        self.parts: dict[str, Part] = {}
        self._authority = Authority(host.folder / "certificates")
        self.server = f"https://{host.network.inside}:{control.PORT}"
        super().__init__(self._config("admin", "gpuspawner-admin", ["system:masters"]))
        certificates = self._authority
        self._add(control.etcd(host, self.binaries))
        self._add(control.api_server(host, self.binaries, certificates, self.api.ready, api_flags))
        manager = self._config("kube-controller-manager", "system:kube-controller-manager")
        self._add(control.controller_manager(host, self.binaries, certificates, manager))
        config = self._config("kube-scheduler", "system:kube-scheduler")
        self._add(control.scheduler(host, self.binaries, config, scheduler_requests))
        if with_node:
            self._add_node()

    def start(self) -> None:
        """Start every part, and wait until the cluster works."""
        order = ["etcd", "kube-apiserver", "containerd"]
        for name in order:
            if name in self.parts:
                self.parts[name].start()
        for name in order:
            if name in self.parts:
                self.parts[name].wait()
        rest = [part for name, part in self.parts.items() if name not in order]
        for part in rest:
            part.start()
        if "containerd" in self.parts:
            self.load(images.busybox(self.host.folder / "busybox.tar"))
            self.load(images.busybox(self.host.folder / "pause.tar", images.PAUSE))
        for part in rest:
            part.wait()
        until(lambda: self.api.find("ServiceAccount", "default"), 120, lambda: f"a service account: {self._said()}")
        for content in _node_rights():
            self.api.create(content)
        if "kubelet" in self.parts:
            until(self._node_ready, 120, lambda: f"the node to be ready: {self.parts['kubelet'].said()}")

    def mend(self) -> None:
        """Start again whatever has ended, and wait until the cluster works."""
        gone = [part for part in self.parts.values() if not part.running]
        for part in gone:
            part.start()
        for part in gone:
            part.wait()
        if gone and "kubelet" in self.parts:
            until(self._node_ready, 120, lambda: f"the node to be ready: {self.parts['kubelet'].said()}")

    def load(self, image: Path) -> None:
        """Put an image (a tar of an OCI layout) on the node."""
        node.load(self.host, self.binaries, image)

    def ready_for_simulated_nodes(self) -> None:
        """Start kwok, if it does not run yet."""
        if "kwok" not in self.parts:
            self._add_kwok()

    def add_simulated_nodes(self, count: int, first: int = 0, prefix: str = "sim", *, wait: bool = True) -> list[str]:
        """Nodes played by kwok: pods on them are said to run and do not. Returns their names, ready where `wait`."""
        self.ready_for_simulated_nodes()
        names = [f"{prefix}-{number}" for number in range(first, first + count)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: self.api.create(_simulated_node(name)), names))
        if wait:
            until(
                lambda: self._ready_nodes() >= set(names), 120, lambda: f"simulated nodes: {self.parts['kwok'].said()}"
            )
        return names

    def config_for(self, name: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig of a user of that name, such as `system:serviceaccount:hub:agent`, in these groups."""
        return self._config("".join(c if c.isalnum() else "-" for c in name), name, groups)

    def close(self) -> None:
        """End everything, whatever is in it."""
        self.api.close()
        self.host.close()

    def _add(self, part: Part) -> Part:
        self.parts[part.name] = part
        return part

    def _config(self, file: str, user: str, groups: Sequence[str] = ()) -> Path:
        certificate, key = self._authority.issue(file, user, groups)
        return self._authority.kubeconfig(self.host.folder / f"{file}.kubeconfig", self.server, certificate, key)

    def _add_node(self) -> None:
        cni = next(folder for folder in _CNI if (folder / "bridge").exists())
        self._add(node.containerd(self.host, self.binaries, cni))
        config = self._config("kubelet", f"system:node:{NODE}", ["system:nodes"])
        self._add(node.kubelet(self.host, self.binaries, self._authority, config, NODE))
        self._add(control.proxy(self.host, self.binaries, self._config("kube-proxy", "system:kube-proxy"), NODE))
        address = self.host.network.dns
        self.host.run("ip", "address", "add", f"{address}/32", "dev", "lo")
        names = [sys.executable, "-m", "tests.support.cluster.dns", f"--kubeconfig={self.kubeconfig}"]
        self._add(Part(self.host, "dns", [*names, f"--address={address}"], env={"PYTHONPATH": str(build.ROOT)}))

    def _add_kwok(self) -> None:
        stages = build.files("kwok") / "kustomize/stage"
        wanted = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
        files = [file for folder in wanted for file in sorted((stages / folder).glob("*-*.yaml"))]
        command = [
            build.programs(["kwok"])["kwok"],
            f"--kubeconfig={self._config('kwok', 'kwok', ['system:masters'])}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--cidr=10.{self.host.network.number}.192.0/18",
            f"--node-ip={self.host.network.inside}",
            "--node-lease-duration-seconds=40",
            *(f"--config={file}" for file in files),
        ]
        part = self._add(Part(self.host, "kwok", command))
        part.start()

    def _ready_nodes(self) -> set[str]:
        return {
            each["metadata"]["name"]
            for each in self.api.list("Node")
            if any(c["type"] == "Ready" and c["status"] == "True" for c in each["status"].get("conditions", ()))
        }

    def _node_ready(self) -> bool:
        kubelet = self.parts["kubelet"]
        assert kubelet.running, kubelet.said()
        return NODE in self._ready_nodes()

    def _said(self) -> str:
        return "\n".join(f"{name}: {part.said()}" for name, part in self.parts.items() if not part.running)


def why_not() -> str | None:
    """Why no cluster can be started here; None where it can."""
    if os.geteuid() != 0:
        return f"a cluster of its own needs root; {VARIABLE} names the kubeconfig of another"
    missing = [name for name in ("unshare", "nsenter", "ip", "iptables", "runc") if shutil.which(name) is None]
    if not any((folder / "bridge").exists() for folder in _CNI):
        missing.append("containernetworking-plugins")
    if not Path("/bin/busybox").exists():
        missing.append("busybox-static")
    return f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed" if missing else None


@contextmanager
def cluster(
    *, with_node: bool = True, scheduler_requests: int | None = None, api_flags: Sequence[str] = ()
) -> Iterator[OwnCluster]:
    """A cluster of our own that works. `scheduler_requests`: what the scheduler may send a second."""
    host = Host()
    try:
        made = OwnCluster(host, with_node=with_node, scheduler_requests=scheduler_requests, api_flags=api_flags)
        made.start()
    except BaseException:
        keep_logs(host)
        host.close()
        raise
    try:
        yield made
    finally:
        keep_logs(host)
        made.close()


def keep_logs(host: Host) -> None:
    """Copy the parts' logs to GPUSPAWNER_TEST_OUTPUT, where that is set."""
    output = os.environ.get("GPUSPAWNER_TEST_OUTPUT")
    if output and (host.folder / "logs").is_dir():
        with suppress(OSError):
            shutil.copytree(host.folder / "logs", Path(output) / host.name, dirs_exist_ok=True)


def _node_rights() -> list[Object]:
    """A kubelet may read what its pods use, whoever they are. By Kubernetes' own rule only once the API server has
    seen that the pod is on its node; where that is late, the kubelet tries again after one or two minutes."""
    api, group, name = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io", "gpuspawner-test-nodes"
    rules = [
        {"apiGroups": [""], "resources": ["pods", "configmaps", "secrets"], "verbs": ["get"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    ]
    role = {"apiGroup": group, "kind": "ClusterRole", "name": name}
    subject = {"apiGroup": group, "kind": "Group", "name": "system:nodes"}
    meta = {"name": name}
    return [
        {"apiVersion": api, "kind": "ClusterRole", "metadata": meta, "rules": rules},
        {"apiVersion": api, "kind": "ClusterRoleBinding", "metadata": meta, "roleRef": role, "subjects": [subject]},
    ]


def _simulated_node(name: str) -> Object:
    size = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": _SIMULATED, "labels": labels},
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": size, "allocatable": size, "phase": "Running"},
    }
