"""The notebook about eight patients runs from top to bottom, and what it shows is what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.notebooks import FOLDER, execute

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(120)
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'images/runtime'}:{ROOT / 'images/examples'}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = execute(FOLDER / "ct.ipynb", tmp_path, edge=24, phases=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert "24 x 18 x 18 voxels" in outputs[0]["text"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 7
    shown = "\n".join(output.get("data", {}).get("text/markdown", "") for output in outputs)
    (smeared,), (found,) = (
        re.findall(rf"\| {name} \| .* \| ([\d.]+) % \|", shown) for name in ("all views", "by iteration, by phase")
    )
    assert float(found) < float(smeared)
