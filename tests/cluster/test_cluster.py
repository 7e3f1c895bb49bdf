"""The cluster that the other tests use is a real one: it schedules, runs pods, and is gone without a trace."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from support.cluster import images
from support.cluster.cluster import NODE, Cluster, OwnCluster
from support.common import until

ROOT = Path(__file__).parents[2]


def sleeper(name: str, namespace: str, command: list[str] | None = None, **spec: object) -> dict[str, object]:
    container = {"name": "main", "image": images.BUSYBOX, "imagePullPolicy": "Never"}
    if command:
        container["command"] = command  # type: ignore[assignment]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }


def test_it_is_the_version_that_we_need(any_cluster: Cluster) -> None:
    version = any_cluster.api.http.get("/version").json()
    assert (int(version["major"]), int(version["minor"].rstrip("+"))) >= (1, 36)
    resources = any_cluster.api.http.get("/apis/resource.k8s.io/v1").json()["resources"]
    assert "resourceclaims/status" in {each["name"] for each in resources}


def test_a_pod_runs_and_says_what_it_has_to_say(own_cluster: OwnCluster, namespace: str) -> None:
    api = own_cluster.api
    command = ["/bin/sh", "-c", "echo hello; exec sleep 1000"]
    api.create(sleeper("one", namespace, command))
    found = until(
        lambda: (p := api.get("Pod", "one", namespace))["status"].get("phase") == "Running" and p, 120, "the pod"
    )
    assert found["spec"]["nodeName"] == NODE
    assert own_cluster.kubectl("--namespace", namespace, "logs", "one") == "hello\n"
    assert own_cluster.kubectl("--namespace", namespace, "exec", "one", "--", "id", "-u") == "0\n"
    # It has its own network, from which the API server's service address is reached.
    address = found["status"]["podIP"]
    assert address.startswith(f"10.{own_cluster.host.network.number}.")
    tried = ["/bin/sh", "-c", f"nc -w 5 {own_cluster.host.network.api} 443 </dev/null"]
    until(lambda: _succeeds(own_cluster, namespace, "one", tried), 60, "the API server's service address")


def _succeeds(cluster: OwnCluster, namespace: str, pod: str, command: list[str]) -> bool:
    try:
        cluster.kubectl("--namespace", namespace, "exec", pod, "--", *command)
    except AssertionError:
        return False
    return True


def test_simulated_nodes_take_pods(own_cluster: OwnCluster, namespace: str) -> None:
    names = own_cluster.add_simulated_nodes(2, prefix=namespace)
    tolerations = [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]
    selector = {"kubernetes.io/hostname": names[1]}
    own_cluster.api.create(sleeper("far", namespace, tolerations=tolerations, nodeSelector=selector))
    until(
        lambda: own_cluster.api.get("Pod", "far", namespace)["status"].get("phase") == "Running",
        60,
        "kwok to play the pod",
    )
    for name in names:
        own_cluster.api.delete("Node", name)


def test_a_part_is_killed_and_started_again(own_cluster: OwnCluster, namespace: str) -> None:
    scheduler = own_cluster.parts["kube-scheduler"]
    scheduler.kill()
    own_cluster.api.create(sleeper("late", namespace))
    assert not scheduler.running
    scheduler.start()
    until(
        lambda: own_cluster.api.get("Pod", "late", namespace)["status"].get("phase") == "Running",
        120,
        "the pod to be scheduled",
    )


_KILLED = """
    import os, sys
    sys.path.insert(0, "tests")
    from support.cluster.host import Host
    host = Host()
    print(host.folder, host.pid, host.network.link, flush=True)
    host.popen(["sleep", "1000"], host.folder / "log", dict(os.environ))
    sys.stdin.readline()
"""


def test_what_a_killed_run_leaves_is_no_trouble(own_cluster: OwnCluster) -> None:
    """The kernel ends it all; the folder goes at the next start. The shared cluster, still in use, stays."""
    command = [sys.executable, "-c", textwrap.dedent(_KILLED)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        folder, pid, link = other.stdout.readline().split()
        assert Path("/sys/class/net", link).exists()
        other.send_signal(signal.SIGKILL)
    until(lambda: not Path("/proc", pid).exists(), 30, "its namespaces' end")
    until(lambda: not Path("/sys/class/net", link).exists(), 30, "its network's end")
    assert Path(folder).is_dir()
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as again:
        assert again.stdout is not None
        second = Path(again.stdout.readline().split()[0])
        assert second.is_dir()
        assert not Path(folder).exists()
        again.kill()
    assert own_cluster.host.folder.is_dir()
    assert own_cluster.api.ready()
