"""The image that all notebook images stand on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.container import Share, lab

GIB = 1 << 30
_CARD = """
import pynvml
from cuda.bindings import driver
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total)
driver.cuInit(0)
_, context = driver.cuCtxCreate(None, 0, driver.cuDeviceGet(0)[1])
print([int(driver.cuMemAlloc(size << 30)[0]) for size in (19, 2)])
"""


def test_lab_runs_on_a_share_with_a_root_that_cannot_be_written(
    image: Callable[[str], str], quarter: Share, tmp_path: Path
) -> None:
    with lab(image("base"), tmp_path / "container", quarter) as made:
        assert made.run("id", "-u", "-n").strip() == "jovyan"
        assert made.run("sh", "-c", "touch /opt/gpuspawner/one /etc/one 2>&1; echo").count("Read-only file system") == 2
        assert "gpuspawner-lab" in {each["name"] for each in made.get("lab/api/extensions")}
        kernel = made.kernel()
        total, answers = kernel(_CARD).splitlines()
        assert int(total) == quarter.limit_bytes
        assert answers == "[0, 2]", "19 GiB, and no more"
        quarter.resize(4, 40 * GIB)
        assert kernel("print(int(driver.cuMemAlloc(2 << 30)[0]))") == "0\n", "the same kernel after a resize"
        assert "gpuspawner_runtime" in kernel("import gpuspawner_runtime; print(gpuspawner_runtime.__file__)")
        assert (made.home / "tour.ipynb").exists()


def test_hooks_run_before_the_server(image: Callable[[str], str], tmp_path: Path) -> None:
    hooks = {
        "50-variable.sh": "export FROM_A_HOOK=yes",
        "60-file": "#!/bin/sh\necho made > $HOME/made-by-a-hook",
        "70-fails": "#!/bin/sh\nexit 3",
    }
    places = {}
    for name, text in hooks.items():
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o755)
        places[path] = f"/usr/local/bin/before-notebook.d/{name}"
    with lab(image("base"), tmp_path / "container", mounts=places) as made:
        assert made.kernel()("import os; print(os.environ['FROM_A_HOOK'])") == "yes\n"
        assert (made.home / "made-by-a-hook").read_text() == "made\n"
        assert "70-fails failed (3)" in made.said()


def test_packages_of_ones_own_go_into_the_home(image: Callable[[str], str], tmp_path: Path) -> None:
    with lab(image("base"), tmp_path / "container") as made:
        kernel = made.kernel()
        wheel = "own_package-1-py3-none-any.whl"
        kernel(_WHEEL.format(wheel=wheel))
        said = kernel(f"%pip install --no-index ~/{wheel}", 120)
        assert "Successfully installed" in said, said
        assert kernel("import own_package; print(own_package.answer)") == "42\n"
        assert list(made.home.glob(".local/lib/python3*/site-packages/own_package"))
        # what the image has comes first, so that nobody's home keeps a server from starting
        assert kernel("import jupyterlab; print(jupyterlab.__file__)").startswith("/opt/gpuspawner/")


#: A wheel made by hand: no registry is asked.
_WHEEL = """
import pathlib, zipfile
info = "own_package-1.dist-info/"
with zipfile.ZipFile(pathlib.Path.home() / "{wheel}", "w") as out:
    out.writestr("own_package/__init__.py", "answer = 42\\n")
    out.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: own-package\\nVersion: 1\\n")
    out.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    out.writestr(info + "RECORD", "")
"""
