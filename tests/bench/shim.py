"""What the shim adds to a call, measured in front of a driver that returns at once.

The driver and the program are compiled here; the program calls both by turns, in rounds, and the median over the rounds
counts, since machines are noisy.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from gpuspawner.node.limits import abi, build

HERE = Path(__file__).parent
#: The null driver's card.
UUID = "GPU-6e756c6c-2064-7269-7665-722030303030"


def null_driver(folder: Path) -> Path:
    """The driver that does nothing, compiled into `folder`."""
    library = folder / "libcuda.so.1"
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-Wl,-Bsymbolic,-soname,libcuda.so.1", "-o", library, HERE / "null_driver.c"],
        check=True,
    )
    return library


def environment(folder: Path, driver: Path, limit: abi.CardLimit) -> dict[str, str]:
    """Variables for a program behind the shim in front of `driver`, with limits of its own in `folder`."""
    build_folder = build.host_flavour(build.DriverFiles(driver, driver), folder / "shim")
    abi.write_limits(folder / "limit", [limit])
    abi.create_usage(folder / "usage")
    return os.environ | {
        "LD_LIBRARY_PATH": str(build_folder),
        "GPUSPAWNER_LIMITS": str(folder / "limit"),
        "GPUSPAWNER_USAGE": str(folder / "usage"),
    }


def rounds(what: str, eighths: int = 8) -> list[tuple[float, float]]:
    """Nanoseconds for each call by round: directly, and through the shim with so much of the card."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver, program = null_driver(folder), folder / "shim_calls"
        subprocess.run(["cc", "-O2", "-o", program, HERE / "shim_calls.c", "-ldl"], check=True)
        variables = environment(folder, driver, abi.CardLimit(UUID, eighths, 1 << 40))
        shim = Path(variables["LD_LIBRARY_PATH"]) / "libcuda.so.1"
        done = subprocess.run(
            [program, driver, shim, what], env=variables, capture_output=True, text=True, check=False, timeout=300
        )
    if done.returncode != 0:
        raise RuntimeError(f"shim_calls {what} ended with {done.returncode}: {done.stderr.strip()}")
    found = []
    for line in done.stdout.splitlines():
        first, second = line.split()
        found.append((float(first), float(second)))
    return found


def added(what: str, eighths: int = 8) -> float:
    """Nanoseconds that the shim adds with so much of the card: the median over the rounds."""
    found = rounds(what, eighths)
    differences = sorted(through - direct for direct, through in found)
    print(
        f"{what}, {eighths}/8 of the card: {statistics.median(d for d, _ in found):.1f} ns directly, "
        f"{statistics.median(t for _, t in found):.1f} ns through the shim; added, over {len(found)} rounds: "
        f"median {statistics.median(differences):.1f}, from {differences[0]:.1f} to {differences[-1]:.1f}"
    )
    return statistics.median(differences)
