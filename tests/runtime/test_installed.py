"""The package by itself: installed from its folder, without anything else of the repository."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "images" / "runtime"
CODE = """
import pathlib, sys
import torch, gpuspawner_runtime
from gpuspawner_runtime import run
assert REPO not in "".join(sys.path), sys.path
assert pathlib.Path(gpuspawner_runtime.__file__).is_relative_to(PLACE)
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with run("alone", model=model, optimizer=optimizer, loader=[torch.ones(1, 2)] * 4, epochs=2) as r:
    for batch in r:
        r.step(model(batch).square().mean())
        if r.steps == 3 and r.resumed is None:
            break
print(r.resumed, r.steps)
print(r.report())
"""


def test_it_trains_and_resumes_without_the_repository(tmp_path: Path, home: Path) -> None:
    place = tmp_path / "installed"
    uv = subprocess.run([ROOT / "tools/uv"], check=True, capture_output=True, text=True).stdout.strip()
    cache = {**os.environ, "HOME": os.environ.get("GPUSPAWNER_TEST_HOME", os.environ["HOME"])}
    command = [
        uv,
        "pip",
        "install",
        "-q",
        "--python",
        sys.executable,
        "--no-deps",
        "--target",
        str(place),
        str(PACKAGE),
    ]
    subprocess.run(command, check=True, env=cache, timeout=300)
    assert (place / "gpuspawner_runtime" / "py.typed").exists()
    assert (place / "etc/ipython/startup/51-gpuspawner-runtime.py").exists()
    env = {**os.environ, "PYTHONPATH": str(place)}
    code = f"REPO, PLACE = {str(ROOT)!r}, {str(place)!r}\n{CODE}"
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0].splitlines()[0] == "None 3"
    assert "step-3 8" in said[1].splitlines()


def test_what_it_imports_is_what_it_asks_for() -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["torch"], *extras["quantum"]]
    names = {re.split(r"[\s>=<\[]", each)[0].lower() for each in asked} | {"gpuspawner_runtime"}
    # used where they are installed anyhow: in a notebook, beside a hub, on a card, with a reader of their own
    names |= {"ipython", "gpuspawner_lab", "pynvml", "amdsmi", "webdataset", "streaming"}
    for file in (PACKAGE / "gpuspawner_runtime").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
            for module in modules:
                top = module.split(".")[0]
                assert top in sys.stdlib_module_names or top.lower() in names, f"{file.name} imports {module}"
