"""The C parts built with the compiler's sanitizers: real programs on simulated cards go through them, and threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.limits import ROOT
from support.sanitizers import compile_flags, needs

from gpuspawner.node.limits import abi

LIMITS = ROOT / "gpuspawner" / "node" / "limits"
SIMULATION = ROOT / "gpuspawner" / "simulation"
FLAGS = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"

#: Tests that, taken together, go through all of the shim, the launcher and the simulated cards.
CHOSEN = {
    "tests/integration/test_limits_memory.py": "every_kind_is_counted or errors_of or random_limit",
    "tests/integration/test_limits_graphs.py": "outlives or makes_room",
    "tests/integration/test_limits_processes.py": "forked",
    "tests/integration/test_limits_nvml.py": "share_is_the_card or other_cards",
    "tests/integration/test_limits_launch.py": "state_folder or no_privileges or SIGTERM",
}


def built(folder: Path) -> dict[str, str]:
    """Variables that lead the tests to parts built with the sanitizers."""
    limits = ["gpuspawner-launch", "host-libcuda.so.1", "host-libnvidia-ml.so.1", "libgpuspawner-nvml.so"]
    for source, variable, targets in (
        (LIMITS, "BIN", [f"{folder}/BIN/{name}" for name in limits]),
        (SIMULATION, "BUILD", ["all"]),
    ):
        subprocess.run(
            [
                "make",
                "-s",
                "-j2",
                "-C",
                source,
                f"{variable}={folder / variable}",
                f"CFLAGS={FLAGS}",
                "STATIC=",
                *targets,
            ],
            check=True,
            env=os.environ | {"MAKEFLAGS": ""},
        )
    (folder / "BIN" / "libgpuspawner-cuda.so").symlink_to(LIMITS / "bin" / "libgpuspawner-cuda.so")  # as the host's
    return {"GPUSPAWNER_TEST_LIMITS": str(folder / "BIN"), "GPUSPAWNER_TEST_SIMULATION": str(folder / "BUILD")}


@pytest.mark.timeout(600)  # half a minute's work on an idle machine
@needs("address,undefined")
def test_programs_run_clean_under_the_address_and_undefined_behaviour_sanitizers(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    runtime = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = (
        os.environ
        | built(tmp_path)
        | {
            "LD_PRELOAD": str(Path(runtime).resolve()),  # a program that was not built with it loads it first
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:verify_asan_link_order=0",
            "PYTEST_ADDOPTS": "",
        }
    )
    chosen = " or ".join(CHOSEN.values())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", chosen, *CHOSEN],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@needs("thread")
def test_threads_run_clean_under_the_thread_sanitizer(tmp_path: Path) -> None:
    shim, program = LIMITS / "shim", tmp_path / "threads"
    parts = [shim / name for name in ("common.c", "limitfile.c", "accounts.c", "table.c")]
    flags = [*compile_flags("thread"), "-DHOST_FLAVOUR", "-I", str(shim)]
    subprocess.run(["cc", *flags, "-o", program, ROOT / "tests/c/accounts_threads.c", *parts, "-pthread"], check=True)
    cards = [f"GPU-00000000-0000-4000-8000-00000000000{i}" for i in range(2)]
    limits, usage = tmp_path / "limits", tmp_path / "usage"

    def limit(size: int) -> None:
        abi.write_limits(limits, [abi.CardLimit(card, 1, size) for card in cards])

    limit(1 << 20)
    abi.create_usage(usage)
    process = subprocess.Popen(
        [program],
        env={"GPUSPAWNER_LIMITS": str(limits), "GPUSPAWNER_USAGE": str(usage)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    changes = 0
    while process.poll() is None:
        limit(1 << 19 if changes % 2 else 1 << 20)
        changes += 1
    out, error = process.communicate()
    assert (process.returncode, out) == (0, "0 0\n"), error[-4000:]
    assert changes > 10
