"""Executes the notebooks of docs/tutorial. `tools/notebooks` writes them back with outputs; tests only run them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "docs/tutorial"
#: What a notebook may weigh with its pictures.
_BYTES = 700_000


def execute(path: Path, folder: Path, **parameters: Any) -> nbformat.NotebookNode:
    """The notebook after a run from top to bottom in `folder`; a cell that fails raises `CellExecutionError`.

    `parameters` are set after the cell tagged `parameters`, by a cell that is not in what is returned.
    """
    notebook = nbformat.read(path, as_version=4)
    given = None
    if parameters:
        at = next(n for n, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
        given = nbformat.v4.new_code_cell("\n".join(f"{name} = {value!r}" for name, value in parameters.items()))
        notebook.cells.insert(at + 1, given)
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=1800, kernel_name="python3", resources=resources, record_timing=False)
    client.execute()
    notebook.cells = [cell for cell in notebook.cells if cell is not given]
    notebook.metadata.pop("widgets", None)  # their live state; the page shows what they said as text
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main(names: list[str]) -> int:
    """Execute the named notebooks, or all; returns the exit status."""
    for path in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb")):
        print(f"== {path.name}", flush=True)
        text = nbformat.writes(execute(path, FOLDER)) + "\n"
        if len(text.encode()) > _BYTES:
            print(f"{path.name} would have {len(text.encode())} bytes; at most {_BYTES} are allowed.", file=sys.stderr)
            return 1
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
