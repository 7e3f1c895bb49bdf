"""CDI specs: what a container runtime puts into a container that uses a claim.

The container finds the shim wherever programs look for the driver's libraries, the driver itself behind it, the limits
of its session, which it cannot write, and the file in which its processes count what they use.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuspawner import kubernetes_names as names
from gpuspawner.node.dra.claims import Prepared
from gpuspawner.node.drivers.base import Access
from gpuspawner.node.limits import launch

KIND = f"{names.DRIVER}/card"
_VERSION = "0.6.0"
_NO_ACCESS = Access()
#: Where the dynamic linker looks without being told, by distribution: Debian and Ubuntu, the Red Hat family and SUSE.
_FOLDERS = {"x86_64": "/usr/lib/x86_64-linux-gnu", "aarch64": "/usr/lib/aarch64-linux-gnu"}


@dataclass(frozen=True)
class Mount:
    """A file or folder of the node in a container."""

    source: Path
    place: str
    writable: bool = False

    def shown(self) -> dict[str, Any]:
        """As CDI writes it."""
        options = ["rbind" if self.source.is_dir() else "bind", "nosuid", "nodev", "rw" if self.writable else "ro"]
        return {"hostPath": str(self.source), "containerPath": self.place, "options": options}


def device_ids(prepared: Prepared) -> list[str]:
    """The CDI ids of a claim's parts, in their order."""
    return [f"{KIND}={_name(prepared, index)}" for index in range(len(prepared.parts))]


def spec(
    prepared: Prepared,
    folder: Path,
    files: launch.DriverFiles,
    shims: Mapping[str, Path],
    visible: Iterable[str],
    access: Access = _NO_ACCESS,
    machine: str = os.uname().machine,
) -> dict[str, Any]:
    """The spec of a claim. `folder`: the node's own for its session. `shims`: by the name of the library that each
    stands before. `visible`: uuids of its cards or slices.
    `access`: what else its cards' driver needs."""
    env = {
        **{name: _inside(files, value) for name, value in files.env.items()},
        **access.env,
        "CUDA_VISIBLE_DEVICES": ",".join(visible),
    }
    common = [f"{name}={value}" for name, value in sorted(env.items())]
    edits: dict[str, Any] = {
        "mounts": [mount.shown() for mount in mounts(folder, files, shims, machine)],
        "deviceNodes": [{"path": str(node)} for node in access.own],
    }
    devices = []
    for index, part in enumerate(prepared.parts):
        own: dict[str, Any] = {"env": [f"GPUSPAWNER_DEVICE_{index}={part.device}"]}
        if index == 0:  # whatever the parts have in common comes once
            own = {**{key: value for key, value in edits.items() if value}, "env": [*common, *own["env"]]}
        devices.append({"name": _name(prepared, index), "containerEdits": own})
    return {"cdiVersion": _VERSION, "kind": KIND, "devices": devices}


def mounts(folder: Path, files: launch.DriverFiles, shims: Mapping[str, Path], machine: str) -> list[Mount]:
    """Everything of the node that a container of a session gets."""
    inside = launch.INSIDE
    found = [
        Mount(launch.limit_path(folder).parent, str(inside / "limits")),
        Mount(launch.usage_path(folder), str(inside / "usage/usage"), writable=True),
        *(Mount(path, str(inside / "driver" / name)) for _, path, name in files.behind()),
    ]
    folders = [str(inside / "lib"), _FOLDERS.get(machine, "/usr/lib"), "/usr/lib64"]
    for name, shim in shims.items():
        found += [Mount(shim, f"{place}/{name}{end}") for place in folders for end in ("", ".1")]
    found += [Mount(path, _inside(files, str(path)), writable=True) for path in files.extra]
    return found


def write(specs: Path, prepared: Prepared, content: Mapping[str, Any]) -> None:
    """Put a spec where the container runtime reads it, as a whole."""
    specs.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=specs, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).rename(path(specs, prepared.session))
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove(specs: Path, session: str) -> None:
    """Take a session's spec away."""
    path(specs, session).unlink(missing_ok=True)


def path(specs: Path, session: str) -> Path:
    """Where a session's spec is."""
    return specs / f"gpuspawner-{session}.json"


def sessions(specs: Path) -> set[str]:
    """The sessions that have a spec."""
    return {file.stem.removeprefix("gpuspawner-") for file in specs.glob("gpuspawner-*.json")}


def _name(prepared: Prepared, index: int) -> str:
    part = prepared.parts[index]
    return f"{prepared.uid}-{part.share_id or index}"


def _inside(files: launch.DriverFiles, value: str) -> str:
    """Where a file that the driver needs appears: devices where they were, others in our own folder."""
    if value not in {str(path) for path in files.extra}:
        return value
    return value if value.startswith("/dev/") else str(launch.INSIDE / Path(value).name)
