"""The service over a cluster, sessions whose programs run in pods, and people who change their shares all the time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from gpuspawner import kubernetes_names as names
from gpuspawner.node.limits import abi, launch
from gpuspawner.share import EIGHTHS_PER_CARD
from gpuspawner.supervisor import setup

from ..common import free_ports, until
from .cards import IMAGE, CardNode

INSTANCE = "load"
_SHARES = ("1/8", "1/4", "1/2", "1")
#: The program in a pod reads what it is asked from here and answers in the pod's log.
_ASKED = "/tmp/in"


class Service:
    """`python -m gpuspawner.service` over a cluster; may be killed and started again."""

    def __init__(self, kubeconfig: Path, namespace: str, state: Path) -> None:
        setup.create(state)
        self.state = state
        self.log = state / "logs" / "service.log"
        self.port = free_ports(4)
        self._env = {
            **os.environ,
            "GPUSPAWNER_STATE": str(state),
            "GPUSPAWNER_PORT": str(self.port),
            "GPUSPAWNER_FLEET": "kubernetes",
            "GPUSPAWNER_NAMESPACE": namespace,
            "GPUSPAWNER_INSTANCE": INSTANCE,
            "KUBECONFIG": str(kubeconfig),
        }
        self.token = (state / "secrets" / "service_token").read_text().strip()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> None:
        """Start it; `wait` until it answers."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpuspawner.service"], env=self._env, stdout=log, stderr=log
            )
        if wait:
            until(self.answers, 120, lambda: f"the service: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)

    def answers(self) -> bool:
        """Whether it does."""
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        try:
            with self.client() as client:
                return client.get("/health").status_code == 200
        except httpx.HTTPError:
            return False

    def client(self, timeout: float = 60.0) -> httpx.Client:
        """Asks as the hub."""
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port + 3}/services/gpuspawner/api/v1",
            headers={"Authorization": f"Bearer {self.token}"},
            transport=httpx.HTTPTransport(uds=str(self.state / "run" / "service.sock")),
            timeout=timeout,
        )


class Sessions:
    """Sessions of a service with their pods. In each a program holds a context and some memory on its card."""

    def __init__(self, node: CardNode, service: Service, namespace: str) -> None:
        self.node, self.cluster, self.service, self.namespace = node, node.cluster, service, namespace
        self.uids: dict[str, str] = {}  # of the pods, by session

    def start(self, user: str, share: str, *, run: bool = True) -> str:
        """A session and its pod; its id."""
        with self.service.client() as client:
            answer = client.post("/sessions", json={"user": user, "share": share})
        assert answer.status_code == 201, answer.text
        session: str = answer.json()["session"]["id"]
        made = self.cluster.api.create(pod_of(user, answer.json()["pod"]))
        self.uids[session] = made["metadata"]["uid"]
        if run:
            until(lambda: self.said(user) == "ready", 150, lambda: f"the program of {user}: {self._state(user)}")
        return session

    def said(self, user: str) -> str:
        """The last line of the program in the pod of `user`; empty where it cannot be had."""
        answer = self.cluster.api.http.get(
            f"/api/v1/namespaces/{self.namespace}/pods/{user}/log", params={"tailLines": "1"}
        )
        return answer.text.strip() if answer.status_code == 200 else ""

    def total(self, user: str) -> int:
        """What the program now thinks its card has, in bytes."""
        self.cluster.kubectl("--namespace", self.namespace, "exec", user, "--", "sh", "-c", f"echo info >{_ASKED}")
        line = until(lambda: (found := self.said(user)).count(" ") == 2 and found, 60, f"an answer of {user}")
        error, _, total = str(line).split()
        assert error == "0", line
        return int(total)

    def _state(self, user: str) -> Any:
        events = [each.get("message") for each in self.cluster.api.list("Event", self.namespace)][-6:]
        return self.cluster.api.get("Pod", user, self.namespace)["status"], events

    def end(self, session: str, user: str) -> None:
        """As the hub stops a server: the pod, then the session."""
        self.cluster.api.delete("Pod", user, self.namespace, grace=1)
        with self.service.client() as client:
            answer = client.delete(f"/sessions/{session}")
        assert answer.status_code in (200, 404), answer.text
        self.uids.pop(session, None)


def pod_of(user: str, how: dict[str, Any]) -> dict[str, Any]:
    """The pod of a session as a spawner makes it; `how`: the service's `pod`."""
    container = {
        "name": "notebook",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", f"mkfifo {_ASKED}; exec /bin/card <>{_ASKED}"],
        "resources": {"claims": [{"name": "gpu"}]},
        "securityContext": {"runAsUser": 1000, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": user,
            "namespace": how["namespace"],
            "labels": how["labels"],
            "annotations": how["annotations"],
        },
        "spec": {
            "containers": [container],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": how["claim"]}],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
        },
    }


class Watch(threading.Thread):
    """Reads every limit in force, all the time, and keeps the largest sum of a card. The files' generations make a look
    exact: what was so before and after a look at all of them was so together in between."""

    def __init__(self, state: Path) -> None:
        super().__init__(daemon=True)
        self._sessions = state / "node" / "sessions"
        self._over = threading.Event()
        self.highest = 0
        self.looks = 0
        self.start()

    def run(self) -> None:
        before: dict[Path, tuple[bytes, dict[str, int]]] = {}
        while not self._over.wait(0.002):
            now = self._look()
            if {path: each[0] for path, each in now.items()} == {path: each[0] for path, each in before.items()}:
                sums: Counter[str] = Counter()
                for _, limits in now.values():
                    sums.update(limits)
                self.highest = max(self.highest, *sums.values(), 0)
                self.looks += 1
            before = now

    def _look(self) -> dict[Path, tuple[bytes, dict[str, int]]]:
        found = {}
        for folder in self._sessions.glob("*"):
            path = launch.limit_path(folder)
            try:
                content = path.read_bytes()
                limits = {limit.uuid: limit.eighths for limit in abi.read_limits(path)}
                if path.read_bytes() == content:
                    found[path] = (content[:4096], limits)
            except (OSError, abi.LimitFileError):
                continue
        return found

    def close(self) -> None:
        """No more."""
        self._over.set()
        self.join()


class Load:
    """People who ask for another share again and again, through clients of any of the services. `answers` counts what
    they hear."""

    def __init__(self, services: Sequence[Callable[[], httpx.Client]], sessions: Sequence[str], seed: int = 1) -> None:
        self.answers: Counter[int] = Counter()
        self.grown: Counter[str] = Counter()
        self._services = services
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(session, random.Random(seed + at)), daemon=True)
            for at, session in enumerate(sessions)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, session: str, chance: random.Random) -> None:
        while not self._over.is_set():
            try:
                with chance.choice(self._services)() as client:
                    while not self._over.wait(0.01):
                        answer = client.patch(f"/sessions/{session}", json={"share": chance.choice(_SHARES)})
                        self._count(answer.status_code, session)
            except httpx.HTTPError:
                self._count(0, session)
                self._over.wait(0.1)

    def _count(self, status: int, session: str) -> None:
        with self._lock:
            self.answers[status] += 1
            if status == 200:
                self.grown[session] += 1

    def changes(self) -> int:
        """How many changes were granted so far."""
        return self.answers[200]

    def go_on(self, count: int = 5, within: float = 90.0) -> None:
        """Wait until `count` more changes were granted."""
        wanted = self.changes() + count
        until(lambda: self.changes() >= wanted, within, lambda: f"changes to be granted: {dict(self.answers)}")

    def close(self) -> None:
        """No more."""
        self._over.set()
        for thread in self._threads:
            thread.join(130)
            assert not thread.is_alive()


def by_the_rule(node: CardNode) -> tuple[dict[str, int], dict[str, int]]:
    """What each card should offer by the claims that the API server has and the limits in force, and what it does."""
    promised: dict[str, Counter[str]] = defaultdict(Counter)
    for claim in node.cluster.api.list("ResourceClaim"):
        for result in ((claim["status"].get("allocation") or {}).get("devices") or {}).get("results") or []:
            if result["driver"] == names.DRIVER:
                promised[result["device"]][claim["metadata"]["uid"]] += int(result["consumedCapacity"][names.EIGHTHS])
    limits: dict[str, Counter[str]] = defaultdict(Counter)
    for folder in (node.state / "node" / "sessions").glob("*"):
        if launch.limit_path(folder).exists():
            for limit in abi.read_limits(launch.limit_path(folder)):
                limits[names.device_name(limit.uuid)][folder.name.rpartition("-")[0]] += limit.eighths
    wanted = {
        device["name"]: EIGHTHS_PER_CARD
        + sum(count - limits[device["name"]][uid] for uid, count in promised[device["name"]].items())
        for device in node.devices()
    }
    offered = {each["name"]: int(each["capacity"][names.EIGHTHS]["value"]) for each in node.devices()}
    return wanted, offered
