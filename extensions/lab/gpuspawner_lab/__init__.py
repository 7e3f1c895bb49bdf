"""JupyterLab's view of a GPU share: server extension, `%gpu` magic, tour notebook.

Imported by every kernel through the magic, so nothing heavy is imported here.
"""

from __future__ import annotations

from typing import Any

from .shrink import on_shrink

__all__ = ["__version__", "on_shrink"]
__version__ = "0.1.0"


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "gpuspawner-lab"}]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    from .app import GPUSpawnerLab

    return [{"module": "gpuspawner_lab", "app": GPUSpawnerLab}]
