"""The tour as it is shipped. Its run on simulated cards is part of the integration tests."""

from __future__ import annotations

import ast
from importlib import resources

import nbformat
from IPython.core.inputtransformer2 import TransformerManager


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


def test_every_cell_is_python() -> None:
    for cell in tour().cells:
        if cell.cell_type == "code":
            ast.parse(TransformerManager().transform_cell(cell.source))


def test_the_act_is_in_it() -> None:
    sources = [cell.source for cell in tour().cells]
    assert sources.index("fill()") < sources.index("%gpu resize 1/2") < sources.index("%gpu resize 1/8")
