"""Where the compiled parts lie, and the flavour of the shim for sessions without a namespace."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
BIN = HERE / "bin"
LAUNCHER = BIN / "gpuspawner-launch"
SHIM_CUDA = BIN / "libgpuspawner-cuda.so"
SHIM_NVML = BIN / "libgpuspawner-nvml.so"
HOST_CUDA = BIN / "host-libcuda.so.1"
HOST_NVML = BIN / "host-libnvidia-ml.so.1"

PLACEHOLDER_LENGTH = 1023
"""Characters that the host flavour leaves for the driver's path; as in the Makefile."""


class NotBuiltError(RuntimeError):
    """A compiled part is missing."""


@dataclass(frozen=True)
class DriverFiles:
    """The driver of a node: its two libraries (None where there is no NVIDIA driver), and what else its clients need
    (sockets, devices).

    `hidden`: files beside them that no session may see. `env`: variables that programs need to find it. Where a value
    is the path of one of `extra`, the session gets the place at which that lies inside the session.
    """

    cuda: Path | None
    nvml: Path | None
    extra: list[Path] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    hidden: list[Path] = field(default_factory=list)

    def behind(self) -> list[tuple[Path, Path, str]]:
        """Each library that is there: the shim that goes before it, its file, its name."""
        known = ((SHIM_CUDA, self.cuda, "libcuda.so.1"), (SHIM_NVML, self.nvml, "libnvidia-ml.so.1"))
        return [(shim, path, name) for shim, path, name in known if path is not None]


def require(*paths: Path) -> None:
    """Raise `NotBuiltError` naming what is missing and how it is built."""
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise NotBuiltError(f"{', '.join(missing)} missing in {BIN}: run make -C {HERE}")


def host_flavour(driver: DriverFiles, out_dir: Path) -> Path:
    """Write the shim for sessions without a namespace into `out_dir` and return that.

    It differs from the other only in the path by which it names the driver. That path is written into a place kept
    free for it in the library, so that no compiler is needed on the node.
    """
    require(HOST_CUDA, HOST_NVML)
    out_dir.mkdir(parents=True, exist_ok=True)
    for shim, target, name in driver.behind():
        source = HOST_CUDA if shim == SHIM_CUDA else HOST_NVML
        real = os.fsencode(target.resolve(strict=True))
        if len(real) > PLACEHOLDER_LENGTH:
            raise ValueError(f"driver: given a path of {len(real)} bytes, allowed are {PLACEHOLDER_LENGTH}")
        placeholder = b"/" + b"@" * (PLACEHOLDER_LENGTH - 1) + b"\0"
        content = source.read_bytes()
        if content.count(placeholder) != 1:
            raise NotBuiltError(f"{source}: not the host flavour of the shim: run make -C {HERE}")
        content = content.replace(placeholder, real.ljust(PLACEHOLDER_LENGTH + 1, b"\0"))
        new = out_dir / f".{name}.new"
        new.write_bytes(content)
        shutil.copymode(source, new)
        new.replace(out_dir / name)
        short = out_dir / name.removesuffix(".1")
        if not short.is_symlink():
            short.unlink(missing_ok=True)
            short.symlink_to(name)
    return out_dir
