"""The notebook about driving, from top to bottom at small sizes; and the committed one as it was run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from support.notebooks import FOLDER, execute

ROOT = Path(__file__).parents[2]
NOTEBOOK = FOLDER / "driving.ipynb"


def printed(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_the_notebook_runs_at_small_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(ROOT / place) for place in ("images/runtime", "images/examples")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]))
    small = {"vehicles": 20, "rays": 8, "drive_seconds": 1, "wave_seconds": 4, "sizes": [10, 20], "timed_steps": 2}
    text = printed(execute(NOTEBOOK, tmp_path, **small))
    assert "20 vehicles became 80" in text
    assert "without a gap in the count" in text
    assert "times as many" in text


def test_the_committed_notebook_was_run_and_says_where() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    text = printed(notebook)
    assert "computed on the processor" in text
    assert "200 vehicles became 800" in text
    assert "collisions: 0" in text
    assert "**on a processor**" in notebook.cells[0].source
