"""JupyterHub on fractions of a GPU that are resized while the kernel runs."""

__version__ = "0.1.0"
