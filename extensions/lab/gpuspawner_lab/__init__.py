"""JupyterLab's view of a GPU share: server extension, `%gpu` magic, `GPUShare()` widget, tour notebook.

Imported by every kernel through the magic, so nothing heavy is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .shrink import on_shrink

if TYPE_CHECKING:
    from .widget import GPUShare

__all__ = ["GPUShare", "__version__", "on_shrink"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "GPUShare":
        from .widget import GPUShare

        return GPUShare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "gpuspawner-lab"}]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    from .app import GPUSpawnerLab

    return [{"module": "gpuspawner_lab", "app": GPUSpawnerLab}]
