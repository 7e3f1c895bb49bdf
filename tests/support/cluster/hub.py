"""Hub, proxy and service as processes of this machine, with users' servers as pods of a cluster: the notebook's image,
what hub and service may do in the cluster, and the stack."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..stack import Stack
from . import images
from .api import Object
from .cluster import OwnCluster

IMAGE = f"{images.REGISTRY}/notebook:1"
INSTANCE = "test"
_ROOT = Path(__file__).parents[3]
_CONFIG = Path(__file__).with_name("hub_config.py")
_LEFT_OUT = ("site-packages", "test", "tests", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip")
_GROUP = "rbac.authorization.k8s.io"


def load_notebook(cluster: OwnCluster) -> None:
    """Put the notebook's image on the node: this machine's Python, without packages. Those are mounted from here, so
    that the image is small and the packages are the ones under test."""
    path = cluster.host.folder / "notebook.tar"
    if path.exists():
        return
    library = Path(sysconfig.get_paths()["stdlib"])
    files: dict[str, Path | bytes] = {**images.tree(library, leave_out=_LEFT_OUT)}
    links = {f"/bin/{name}": "busybox" for name in ("sh", "sleep", "cat", "ls", "id", "mount", "dd", "touch", "env")}
    program = Path(sys.executable)
    while program.is_symlink():
        program = program.parent / program.readlink()
        if program.is_symlink() and not program.is_relative_to(sys.prefix):
            links[str(program)] = str(program.readlink())
    modules = [*library.glob("lib-dynload/*.so"), Path("/bin/busybox")]
    files |= images.with_libraries([program.resolve(), *modules])
    folders = {Path(place).parent for place in files if Path(place).name.startswith("libc.so")}
    for folder in folders:
        for name in ("libstdc++.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6"):
            if (folder / name).exists():
                files[str(folder / name)] = (folder / name).resolve()
    files["/bin/busybox"] = Path("/bin/busybox")
    files["/etc/passwd"] = b"root:x:0:0:root:/:/bin/sh\njovyan:x:1000:1000::/home/jovyan:/bin/sh\n"
    files["/etc/group"] = b"root:x:0:\njovyan:x:1000:\n"
    files["/tmp/.keep"] = b""
    cluster.load(images.write(path, IMAGE, files, links=links))


def roles(namespace: str) -> list[Object]:
    """What service and hub may do: the service sees nodes, cards and claims everywhere and deletes pods whose claim a
    node has refused; both have claims and pods in their own namespace."""
    service = [
        _rule("", ["nodes"], "list", "watch"),
        _rule("", ["pods"], "delete"),
        _rule("resource.k8s.io", ["resourceslices", "resourceclaims"], "get", "list", "watch"),
    ]
    own = [
        _rule("", ["pods"], "get", "list", "watch", "delete"),
        _rule("resource.k8s.io", ["resourceclaims"], "get", "create", "patch", "delete"),
    ]
    hub = [
        _rule("", ["pods", "persistentvolumeclaims"], "get", "list", "watch", "create", "delete"),
        _rule("", ["events"], "get", "list", "watch"),
    ]
    found = _bound("ClusterRole", "gpuspawner-service", service, "gpuspawner:service", None)
    found += _bound("Role", "gpuspawner-service", own, "gpuspawner:service", namespace)
    return found + _bound("Role", "gpuspawner-hub", hub, "gpuspawner:hub", namespace)


def _rule(group: str, resources: list[str], *verbs: str) -> Object:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}


def _bound(kind: str, name: str, rules: list[Object], user: str, namespace: str | None) -> list[Object]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    role = {"apiVersion": f"{_GROUP}/v1", "kind": kind, "metadata": meta, "rules": rules}
    subject = {"apiGroup": _GROUP, "kind": "User", "name": user}
    reference = {"apiGroup": _GROUP, "kind": kind, "name": name}
    binding = {"apiVersion": f"{_GROUP}/v1", "kind": f"{kind}Binding", "metadata": meta}
    return [role, {**binding, "roleRef": reference, "subjects": [subject]}]


@contextmanager
def cluster_stack(
    cluster: OwnCluster, namespace: str, state: Path, env: dict[str, str] | None = None, **given: Any
) -> Iterator[Stack]:
    """`gpuspawner up` over the cluster, its servers in `namespace`. `given`: for the hub's configuration."""
    load_notebook(cluster)
    for content in roles(namespace):
        if cluster.api.find(content["kind"], content["metadata"]["name"], namespace) is None:
            cluster.api.create(content)
    places = {"packages": Path(sys.prefix), "gpuspawner": _ROOT / "gpuspawner"}
    volumes = [{"name": name, "hostPath": {"path": str(path), "type": "Directory"}} for name, path in places.items()]
    mounts = [{"name": name, "mountPath": str(path), "readOnly": True} for name, path in places.items()]
    outside = cluster.host.network.outside
    description = {
        "outside": outside,
        "kubeconfig": str(cluster.config_for("gpuspawner:hub")),
        "namespace": namespace,
        "image": IMAGE,
        "command": [sys.executable, "-m", "jupyterhub.singleuser"],
        "path": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "volumes": [*volumes, {"name": "home", "emptyDir": {}}],
        "mounts": [*mounts, {"name": "home", "mountPath": "/home/jovyan"}],
        **given,
    }
    made = Stack(
        state,
        "1*h100-80gb",  # of `gpuspawner up` itself; nobody uses it
        {
            "GPUSPAWNER_FLEET": "kubernetes",
            "GPUSPAWNER_NAMESPACE": namespace,
            "GPUSPAWNER_INSTANCE": INSTANCE,
            "GPUSPAWNER_SERVICE_HOST": "0.0.0.0",
            "GPUSPAWNER_HUB_CONFIG": str(_CONFIG),
            "GPUSPAWNER_TEST_CLUSTER": json.dumps(description),
            "KUBECONFIG": str(cluster.config_for("gpuspawner:service")),
            **(env or {}),
        },
    )
    try:
        made.up()
        yield made
    finally:
        made.end()
