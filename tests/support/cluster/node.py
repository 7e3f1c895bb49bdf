"""The one real node: containerd and kubelet, and what they are configured with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from . import images
from .certificates import Authority
from .host import Host
from .parts import Part

#: The socket of containerd, in the host's own /run.
CONTAINERD = Path("/run/containerd/containerd.sock")
KUBELET = Path("/var/lib/kubelet")

_CONTAINERD = """\
version = 3
root = "{folder}/containerd"
state = "/run/containerd"
oom_score = 0

[grpc]
address = "{socket}"

[plugins."io.containerd.cri.v1.runtime"]
# Where we lack CAP_SYS_RESOURCE, a container with a lower score than ours cannot be started.
restrict_oom_score_adj = true
cdi_spec_dirs = ["/var/run/cdi", "{folder}/etc-cdi"]

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "runc"
SystemdCgroup = false

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "{folder}/cni"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"
"""


def containerd(host: Host, binaries: Mapping[str, Path], cni: Path) -> Part:
    """The container runtime with a bridge for the pods; `ready` once its images are there."""
    folder = host.folder
    network = {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods0",
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": host.network.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": "/run/cni",
                },
            }
        ],
    }
    (folder / "cni").mkdir()
    (folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
    config = folder / "containerd.toml"
    config.write_text(_CONTAINERD.format(folder=folder, socket=CONTAINERD, cni=cni, pause=images.PAUSE))

    def ready() -> bool:
        try:
            host.run(binaries["ctr"], "--address", CONTAINERD, "version", timeout=10)
        except (AssertionError, OSError):
            return False
        return True

    # The shim is found on the path beside it.
    path = f"{binaries['containerd'].parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    return Part(host, "containerd", [binaries["containerd"], "--config", config], ready=ready, env={"PATH": path})


def kubelet(host: Host, binaries: Mapping[str, Path], authority: Authority, kubeconfig: Path, name: str) -> Part:
    """The kubelet of the node `name`; `ready` once its plugins can register."""
    certificate, key = authority.issue("kubelet-server", name, addresses=[host.network.inside, name])
    (host.folder / "resolv.conf").write_text(f"nameserver {host.network.dns}\n")
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(authority.certificate)}},
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
        "podLogsDir": str(host.folder / "pod-logs"),
        "volumePluginDir": str(host.folder / "volume-plugins"),
        "resolvConf": str(host.folder / "resolv.conf"),
        "clusterDNS": [host.network.dns],
        "clusterDomain": "cluster.local",
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": host.cgroup,
        "enforceNodeAllocatable": [],
        # A full disk of the machine that tests run on is not the cluster's affair.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "1Mi"},
        "maxPods": 250,
        "podPidsLimit": -1,
        "registryPullQPS": 0,
        "serializeImagePulls": False,
        "kubeAPIQPS": 500,
        "kubeAPIBurst": 1000,
        "eventRecordQPS": 0,
        "logging": {"verbosity": 2},
    }
    path = host.folder / "kubelet.json"
    path.write_text(json.dumps(config, indent=1))
    command = [binaries["kubelet"], f"--config={path}", f"--kubeconfig={kubeconfig}", f"--root-dir={KUBELET}"]
    command += [f"--hostname-override={name}", f"--node-ip={host.network.inside}"]
    return Part(host, "kubelet", command, ready=lambda: (host.folder / "var-lib/kubelet/plugins_registry").is_dir())


def load(host: Host, binaries: Mapping[str, Path], image: Path) -> None:
    """Put an image into containerd."""
    command = [binaries["ctr"], "--address", CONTAINERD, "--namespace", "k8s.io", "images", "import", image]
    host.run(*command, timeout=900)
