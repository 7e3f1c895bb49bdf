"""Puts the libraries that containers get where the node itself has them: an agent in a container has its own files in
its image, and a container runtime mounts from the node."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gpuspawner
from gpuspawner.node.limits import build, launch

_OWN = Path(gpuspawner.__file__).parent


def libraries(folder: Path, files: launch.DriverFiles) -> tuple[launch.DriverFiles, dict[str, Path]]:
    """The driver's libraries with those that are our own (of simulated cards) copied below `folder`, and the shims by
    their names. Each content has a folder of its own, so that running containers keep what they have."""
    build.require(build.SHIM_CUDA, build.SHIM_NVML)
    put = _putting(folder)
    shims = {"libcuda.so": put(build.SHIM_CUDA, "shim-cuda"), "libnvidia-ml.so": put(build.SHIM_NVML, "shim-nvml")}
    cuda, nvml = (
        put(path, name) if path is not None and path.is_relative_to(_OWN) else path for path, name in _named(files)
    )
    return replace(files, cuda=cuda, nvml=nvml), shims


def _named(files: launch.DriverFiles) -> list[tuple[Path | None, str]]:
    return [(files.cuda, "driver-cuda"), (files.nvml, "driver-nvml")]


def _putting(folder: Path) -> Callable[[Path, str], Path]:
    def put(source: Path, name: str) -> Path:
        content = source.read_bytes()
        place = folder / hashlib.sha256(content).hexdigest()[:16] / name
        if not place.exists():
            place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            new = place.with_suffix(".new")
            shutil.copyfile(source, new)
            new.chmod(0o755)
            new.rename(place)
        return place

    return put
