"""Packages of the extra `quantum`, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from gpuspawner_runtime.errors import RuntimeFault


def load(name: str) -> Any:
    """The module of that name; a RuntimeFault that says what to install where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        message = f"{name} cannot be imported ({error}): pip install 'gpuspawner-runtime[quantum]'"
        raise RuntimeFault(message, code="not-installed", field="simulator", given=name) from error
