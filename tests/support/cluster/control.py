"""The control plane: etcd, API server, controller manager and scheduler."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .certificates import Authority
from .host import Host
from .parts import Part

ETCD = "http://127.0.0.1:2379"
PORT = 6443


def etcd(host: Host, binaries: Mapping[str, Path]) -> Part:
    """The store. What it holds need not outlive the machine, so that it need not wait for the disk."""
    flags = [f"--data-dir={host.folder}/etcd", f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}"]
    flags += ["--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync", "--log-level=warn"]
    return Part(host, "etcd", [binaries["etcd"], *flags])


def api_server(
    host: Host, binaries: Mapping[str, Path], authority: Authority, ready: Callable[[], bool], flags: Sequence[str]
) -> Part:
    """The API server, on the machine's address."""
    net = host.network
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
    certificate, key = authority.issue(
        "api-server", "kube-apiserver", addresses=[net.inside, net.api, "127.0.0.1", *names]
    )
    client, client_key = authority.issue("api-server-client", "kube-apiserver", ["system:masters"])
    signing, public = authority.key("service-accounts")
    command = [
        binaries["kube-apiserver"],
        f"--etcd-servers={ETCD}",
        "--bind-address=0.0.0.0",
        f"--secure-port={PORT}",
        f"--advertise-address={net.inside}",
        f"--service-cluster-ip-range={net.services}",
        f"--client-ca-file={authority.certificate}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--kubelet-client-certificate={client}",
        f"--kubelet-client-key={client_key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={public}",
        f"--service-account-signing-key-file={signing}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        *flags,
    ]
    return Part(host, "kube-apiserver", command, ready=ready)


def controller_manager(host: Host, binaries: Mapping[str, Path], authority: Authority, kubeconfig: Path) -> Part:
    """The controllers; a leader need not be elected where there is one."""
    command = [
        binaries["kube-controller-manager"],
        f"--kubeconfig={kubeconfig}",
        f"--root-ca-file={authority.certificate}",
        f"--service-account-private-key-file={authority.folder}/service-accounts.key",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        # A node that is silent is not ready after so long; its kubelet says something every ten seconds.
        "--node-monitor-grace-period=30s",
    ]
    return Part(host, "kube-controller-manager", command)


def scheduler(host: Host, binaries: Mapping[str, Path], kubeconfig: Path, requests: int | None) -> Part:
    """The stock scheduler. `requests` a second that it may send; None: what it does by itself."""
    connection: dict[str, object] = {"kubeconfig": str(kubeconfig)}
    if requests is not None:
        connection |= {"qps": requests, "burst": 2 * requests}
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": connection,
    }
    path = host.folder / "scheduler.json"
    path.write_text(json.dumps(config, indent=1))
    return Part(host, "kube-scheduler", [binaries["kube-scheduler"], f"--config={path}", "--bind-address=127.0.0.1"])


def proxy(host: Host, binaries: Mapping[str, Path], kubeconfig: Path, node: str) -> Part:
    """What makes the addresses of services work on the node. Limits of the kernel's tables stay as they are."""
    connections = {"maxPerCore": 0, "min": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"}
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": node,
        "clusterCIDR": host.network.pods,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "conntrack": connections,
        "bindAddress": "0.0.0.0",
    }
    path = host.folder / "proxy.json"
    path.write_text(json.dumps(config, indent=1))
    return Part(host, "kube-proxy", [binaries["kube-proxy"], f"--config={path}"])
