"""The tour as it is shipped, and its run in a kernel on a simulated card behind the real limits."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import lab_service
import nbclient
import nbformat
import pytest
from conftest import stop

from gpuspawner.node.limits import abi, build

SIMULATION = Path(build.__file__).parents[2] / "simulation" / "bin"
ASK_CARD = """
import pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlDeviceGetUUID(card), pynvml.nvmlDeviceGetMemoryInfo(card).total)
"""


def tour() -> nbformat.NotebookNode:
    raw = (resources.files("gpuspawner_lab") / "tour" / "tour.ipynb").read_text()
    notebook = nbformat.reads(raw, as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_no_outputs_are_stored() -> None:
    for cell in tour().cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


class LimitedService(lab_service.Service):
    """The service on a limit file: a resize is in force for the running kernel, and use is what it really uses."""

    def __init__(self, folder: Path, uuid: str, total: int) -> None:
        self.folder, self.uuid, self.total = folder, uuid, total
        super().__init__()
        self.others = 0
        abi.create_usage(folder / "usage")

    @property
    def used(self) -> int:  # type: ignore[override]
        return sum(usage.bytes for usage in abi.read_usage(self.folder / "usage"))

    @used.setter
    def used(self, _: int) -> None: ...

    def memory(self, share: str) -> int:  # type: ignore[override]
        return self.total * lab_service.EIGHTHS[share] // 8

    def limit(self, share: str) -> None:
        self.share = share
        limit = abi.CardLimit(self.uuid, lab_service.EIGHTHS[share], self.memory(share))
        abi.write_limits(self.folder / "limit", [limit])

    def resize(self, body: object) -> tuple[int, dict]:
        status, answer = super().resize(body)
        if status == 200:
            self.limit(self.share)
        return status, answer


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LimitedService]:
    """A simulated card, the limits on it, and the environment of a session."""
    socket = tmp_path / "simulation.sock"
    build.require(SIMULATION / "gpuspawner-simd", SIMULATION / "libcuda.so.1")
    daemon = subprocess.Popen(
        [SIMULATION / "gpuspawner-simd", "--socket", socket, "--cards", "1*h100-80gb"], stdout=subprocess.PIPE
    )
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline().startswith(b"ready")
        monkeypatch.setenv("GPUSPAWNER_SIM_SOCKET", str(socket))
        asked = subprocess.run(
            [sys.executable, "-c", ASK_CARD],
            env={**os.environ, "LD_LIBRARY_PATH": str(SIMULATION)},
            capture_output=True,
            text=True,
            check=True,
        )
        uuid, total = asked.stdout.split()
        service = LimitedService(tmp_path, uuid, int(total))
        shim = build.host_flavour(
            build.DriverFiles(SIMULATION / "libcuda.so.1", SIMULATION / "libnvidia-ml.so.1"), tmp_path / "shim"
        )
        monkeypatch.setitem(lab_service.CARD, "uuid", uuid)
        server = lab_service.ServiceServer(service)
        for name, value in {
            "LD_LIBRARY_PATH": str(shim),
            "GPUSPAWNER_LIMITS": str(tmp_path / "limit"),
            "GPUSPAWNER_USAGE": str(tmp_path / "usage"),
            "GPUSPAWNER_SERVICE_URL": server.url,
            "GPUSPAWNER_SESSION": "s1",
            "JUPYTERHUB_API_TOKEN": lab_service.TOKEN,
        }.items():
            monkeypatch.setenv(name, value)
        yield service
        server.stop()
    finally:
        stop(daemon)


def outputs(notebook: nbformat.NotebookNode, cell_id: str) -> list[str]:
    """The text of a cell's outputs, once for each time that it is in the notebook."""
    texts = []
    for cell in notebook.cells:
        if cell.id == cell_id:
            found = [output.get("text") or output["data"]["text/plain"] for output in cell.outputs]
            texts.append("".join(found).strip())
    return texts


@pytest.mark.parametrize("start", ["1/8", "1/4", "1/2", "1"])
def test_the_act_twice_in_one_kernel(limited: LimitedService, start: str) -> None:
    limited.limit(start)
    notebook = tour()
    notebook.cells += copy.deepcopy(notebook.cells)
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute(env=dict(os.environ))

    def chunks(cell_id: str) -> list[int]:
        texts = outputs(notebook, cell_id)
        assert all(text.endswith("CUDA_ERROR_OUT_OF_MEMORY") for text in texts)
        return [int(re.search(r"= (\d+) chunks", text)[1]) for text in texts]  # type: ignore[index]

    # The second time begins with an eighth, at which the first one ends.
    begin = [min(start, "1/4", key=lambda share: lab_service.EIGHTHS[share]), "1/8"]
    assert all("(simulated)" in text for text in outputs(notebook, "look"))
    for before, after, share in zip(chunks("fill"), chunks("fill-again"), begin, strict=True):
        # Sixteen chunks are the whole share; what the context takes may cost one of them.
        assert before in (15, 16)
        ratio = 4 // lab_service.EIGHTHS[share]
        assert 16 * ratio - 1 <= after <= 16 * ratio
    assert [text.partition(":")[0] for text in outputs(notebook, "grow")] == [f"GPU {s} → 1/2" for s in begin]
    for cell_id in ("same", "still"):
        assert outputs(notebook, cell_id) == ["'I was here before the resize.'"] * 2
    assert all(re.search(r"Free \d+\.\d GiB first", text) for text in outputs(notebook, "refuse"))
    assert all(text.startswith("GPU 1/2 of") for text in outputs(notebook, "unchanged"))
    assert all(text.startswith("GPU 1/2 → 1/8") for text in outputs(notebook, "shrink"))
    assert limited.share == "1/8"
