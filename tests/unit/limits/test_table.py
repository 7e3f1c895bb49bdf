"""The shim's table of what a program holds, alone, under the sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.limits import ROOT


def test_the_table_agrees_with_a_plain_array(tmp_path: Path) -> None:
    program = tmp_path / "table_check"
    source, shim = Path(__file__).with_name("table_check.c"), ROOT / "gpuspawner/node/limits/shim"
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    subprocess.run(
        ["cc", *flags, "-fno-sanitize-recover=all", "-I", shim, "-o", program, source, "-pthread"], check=True
    )
    done = subprocess.run(
        [program], env={"ASAN_OPTIONS": "detect_leaks=0"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
