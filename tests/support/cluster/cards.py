"""Simulated cards and the real node agent on the cluster's node, and programs in pods that use them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuspawner import kubernetes_names as names
from gpuspawner.simulation.build import DAEMON
from gpuspawner.simulation.control import Control, control

from ..common import until
from . import images
from .api import Object
from .cluster import NODE, OwnCluster
from .parts import Part

IMAGE = f"{images.REGISTRY}/card:1"
_SOURCE = Path(__file__).with_name("card.c")
_ROOT = Path(__file__).parents[3]


class CardNode:
    """The cluster's node with simulated cards. `agent` may be killed and started again."""

    def __init__(
        self,
        cluster: OwnCluster,
        cards: str,
        kubeconfig: Callable[[str], Path] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster = cluster
        host = cluster.host
        self.state = host.folder / "gpuspawner"
        self.socket = host.folder / "cards.sock"
        self.cdi = Path("/var/run/cdi")
        simulation = [DAEMON, "--socket", self.socket, "--cards", cards]
        self.simulation = Part(host, "simulated-cards", simulation, ready=self.socket.exists)
        env = {
            "GPUSPAWNER_SIM_SOCKET": str(self.socket),
            "LD_LIBRARY_PATH": str(DAEMON.parent),
            "PYTHONPATH": str(_ROOT),
            "PYTHONUNBUFFERED": "1",
            **(settings or {}),
        }
        command = [sys.executable, "-m", "gpuspawner.node.dra", "--node", NODE, "--state", self.state]
        command += ["--cdi", self.cdi, "--kubeconfig", self._kubeconfig(kubeconfig or cluster.config_for)]
        self.agent = Part(host, "agent", command, env=env, ready=self._works)

    def _kubeconfig(self, config_for: Callable[[str], Path]) -> Path:
        """The agent has the rights of its service account and no more."""
        user = "gpuspawner:agent"
        for content in agent_roles(user):
            if self.cluster.api.find(content["kind"], content["metadata"]["name"]) is None:
                self.cluster.api.create(content)
        return config_for(user)

    def start(self) -> None:
        """Start cards and agent, and wait until the cards are offered."""
        self.simulation.start()
        self.simulation.wait()
        self.agent.start()
        self.agent.wait()

    def stop(self) -> None:
        """End both."""
        for part in (self.agent, self.simulation):
            if part.running:
                part.kill()
        for each in self.slices():
            self.cluster.api.delete("ResourceSlice", each["metadata"]["name"])

    def slices(self) -> list[Object]:
        """The node's slices of ours."""
        selector = f"spec.driver={names.DRIVER},spec.nodeName={NODE}"
        return self.cluster.api.list("ResourceSlice", fieldSelector=selector)

    def devices(self) -> list[Object]:
        """The cards as they are published."""
        return [device for each in self.slices() for device in each["spec"]["devices"]]

    def published(self) -> list[int]:
        """Eighths of each card that the scheduler counts on."""
        return [int(device["capacity"][names.EIGHTHS]["value"]) for device in self.devices()]

    def control(self, command: str) -> str:
        """A command to the simulated cards."""
        return control(self.socket, command)

    def used(self, card: int = 0) -> int:
        """Bytes in use on a card, as the device itself counts."""
        with Control(self.socket) as connection:
            return int(connection.state()["cards"][card]["used_bytes"])

    def _works(self) -> bool:
        registry = self.cluster.host.folder / "var-lib/kubelet/plugins_registry"
        return bool(self.devices()) and (registry / f"{names.DRIVER}-reg.sock").exists()


def agent_roles(user: str) -> list[Object]:
    """What an agent may do: read nodes and claims, write its node's slices and what it says of claims."""
    group = "resource.k8s.io"
    rules = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": [group], "resources": ["resourceclaims"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [group], "resources": ["resourceclaims/status"], "verbs": ["patch", "update"]},
        {
            "apiGroups": [group],
            "resources": ["resourceclaims/driver"],
            "verbs": [
                "associated-node:patch",
                "associated-node:update",
                "arbitrary-node:patch",
                "arbitrary-node:update",
            ],
        },
        {
            "apiGroups": [group],
            "resources": ["resourceslices"],
            "verbs": ["get", "list", "watch", "create", "update", "delete"],
        },
    ]
    api = "rbac.authorization.k8s.io/v1"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gpuspawner-agent"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    meta = {"name": "gpuspawner-agent"}
    return [
        {"apiVersion": api, "kind": "ClusterRole", "metadata": meta, "rules": rules},
        {"apiVersion": api, "kind": "ClusterRoleBinding", "metadata": meta, "roleRef": role, "subjects": [subject]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "DeviceClass",
            "metadata": {"name": names.DEVICE_CLASS},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{names.DRIVER}"'}}]},
        },
    ]


@contextmanager
def card_node(
    cluster: OwnCluster,
    cards: str = "2*h100-80gb",
    kubeconfig: Callable[[str], Path] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[CardNode]:
    """The cards for a while, with an image for programs that use them. `kubeconfig`: makes that of the agent's user;
    `settings`: of the agent."""
    program = cluster.host.folder / "card"
    if not program.exists():
        subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-o", program, _SOURCE, "-ldl"], check=True)
        files = {**images.with_libraries([program, DAEMON.parent / "libcuda.so.1"])}
        files = {place: path for place, path in files.items() if path != DAEMON.parent / "libcuda.so.1"}
        files["/bin/card"] = files.pop(str(program))
        # What any image with a C library has, and the shim may ask for.
        libc = next(path for path in files if path.endswith("/libc.so.6"))
        for name in ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6"):
            place = Path(libc).with_name(name)
            files[str(place)] = place.resolve()
        files["/bin/busybox"] = Path("/bin/busybox")
        links = {"/bin/sh": "busybox", "/bin/sleep": "busybox", "/bin/cat": "busybox", "/bin/ls": "busybox"}
        links |= {
            f"/bin/{name}": "busybox" for name in ("env", "mount", "mkfifo", "echo", "id", "find", "dd", "ln", "rm")
        }
        files["/tmp/.keep"] = b""
        cluster.load(
            images.write(
                cluster.host.folder / "card.tar", IMAGE, files, links=links, command=["/bin/sleep", "2147483647"]
            )
        )
    node = CardNode(cluster, cards, kubeconfig, settings)
    node.start()
    try:
        yield node
    finally:
        node.stop()


def claim(name: str, namespace: str, eighths: int | None, uuid: str | None = None) -> Object:
    """A claim of eighths of one card, of a certain one if its uuid is given."""
    wanted: Object = {"deviceClassName": names.DEVICE_CLASS}
    if eighths is not None:
        wanted["capacity"] = {"requests": {names.EIGHTHS: str(eighths)}}
    if uuid is not None:
        expression = f'device.attributes["{names.DRIVER}"].uuid == "{uuid}"'
        wanted["selectors"] = [{"cel": {"expression": expression}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "labels": {names.USER_LABEL: "ann"}},
        "spec": {"devices": {"requests": [{"name": "card", "exactly": wanted}]}},
    }


def pod(name: str, namespace: str, claim_name: str) -> Object:
    """A pod that uses a claim and waits."""
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "resources": {"claims": [{"name": "card"}]},
        "securityContext": {"runAsUser": 1000, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "containers": [container],
            "resourceClaims": [{"name": "card", "resourceClaimName": claim_name}],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
        },
    }


class Program:
    """The program `card` in a pod, asked line by line."""

    def __init__(
        self,
        cluster: OwnCluster,
        pod_name: str,
        namespace: str,
        *words: str,
        container: str = "main",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`words`: for the program, such as the driver's library that it is to use."""
        settings = [f"{name}={value}" for name, value in (env or {}).items()]
        kubectl = [cluster.binaries["kubectl"], f"--kubeconfig={cluster.kubeconfig}", "--namespace", namespace]
        self._process = subprocess.Popen(
            [*kubectl, "exec", "-i", pod_name, "-c", container, "--", "/bin/env", *settings, "/bin/card", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        said = self.receive()
        assert said == "ready", said

    def __call__(self, line: str) -> str:
        """Its answer to a line."""
        self.send(line)
        return self.receive()

    def send(self, line: str) -> None:
        """Ask without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def total(self) -> int:
        """Bytes of memory that it thinks its card has."""
        error, _, total = self("info").split()
        assert error == "0", error
        return int(total)

    def allocate(self, size: int) -> int:
        """The driver's answer: 0, or 2 where there is not as much."""
        return int(self(f"alloc {size}"))

    def close(self) -> None:
        """End it."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.terminate()
        self._process.wait(30)

    def receive(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the program ended with {self._process.wait(30)}"
        return line.strip()


def wait_running(cluster: OwnCluster, name: str, namespace: str, timeout: float = 120.0) -> Object:
    """The pod, once it runs."""

    def running() -> Object | None:
        found = cluster.api.get("Pod", name, namespace)
        return found if found["status"].get("phase") == "Running" else None

    def why() -> str:
        found = cluster.api.get("Pod", name, namespace)["status"]
        events = [each for each in cluster.api.list("Event", namespace) if each["involvedObject"]["name"] == name]
        return f"pod {name} to run: {found} {[each.get('message') for each in events]}"

    found = until(running, timeout, why)
    assert found is not None
    return found


def status(cluster: OwnCluster, name: str, namespace: str) -> dict[str, Any]:
    """What the node says of a claim of one card: its data, and each condition as (status, reason, message)."""
    devices = cluster.api.get("ResourceClaim", name, namespace).get("status", {}).get("devices") or []
    if not devices:
        return {}
    found = dict(devices[0].get("data") or {})
    for condition in devices[0].get("conditions") or []:
        found[condition["type"]] = (condition["status"], condition["reason"], condition["message"])
    return found
