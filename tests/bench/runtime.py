"""Runs a benchmark of the runtime in the environment that has PyTorch, or another that a tool prints the Python of."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def in_runtime(module: str, environment: str = "tools/runtime-env") -> tuple[float, str]:
    """Value and unit by `python -m tests.bench.MODULE`, which prints them last; what it prints before is passed on."""
    python = subprocess.run([ROOT / environment], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    paths = [str(ROOT), str(ROOT / "images/runtime"), str(ROOT / "images/examples"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [python, "-m", f"tests.bench.{module}"]
    last = ""
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if last:
                print(last, flush=True)
            last = line.rstrip("\n")
    if process.returncode:
        print(last)
        raise SystemExit(f"{module} ended with status {process.returncode}.")
    value, _, unit = last.partition(" ")
    return float(value), unit
