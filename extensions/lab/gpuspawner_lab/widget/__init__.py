"""`GPUShare()`: the share in a notebook cell, live. Imported on first use, since it needs ipywidgets."""

from .widget import GPUShare

__all__ = ["GPUShare"]
