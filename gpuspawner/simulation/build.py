"""Build the daemon and the client libraries when they are missing or older than their sources."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
BIN = HERE / "bin"
DAEMON = BIN / "gpuspawner-simd"
PRODUCTS = (DAEMON, BIN / "libcuda.so.1", BIN / "libnvidia-ml.so.1")


class BuildError(RuntimeError):
    """The C parts cannot be built; the message says what is missing or what the compiler said."""


def stale() -> bool:
    """Whether a product is missing or older than a source. Installed without sources, what is there counts."""
    if not all(product.exists() for product in PRODUCTS):
        return True
    sources = [path for path in (HERE / "src").rglob("*") if path.is_file()]
    if not sources:
        return False
    newest = max(path.stat().st_mtime for path in [*sources, HERE / "Makefile"])
    return newest > min(product.stat().st_mtime for product in PRODUCTS)


def build() -> Path:
    """Build what is stale, and return the folder with the daemon and the libraries.

    Raises `BuildError` where make or the compiler is missing or fails.
    """
    if not stale():
        return BIN
    if shutil.which("make") is None:
        raise BuildError(
            "the simulated cards must be built once, and make was not found: install make and a C compiler"
        )
    BIN.mkdir(exist_ok=True)
    with (BIN / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test runners may come here at once
        if stale():
            result = subprocess.run(["make", "-s", "-C", str(HERE)], capture_output=True, text=True, check=False)
            if result.returncode:
                raise BuildError(f"make -C {HERE} failed:\n{result.stdout}{result.stderr}".rstrip())
            for product in PRODUCTS:  # make leaves alone what a touched source did not change
                product.touch()
    return BIN
