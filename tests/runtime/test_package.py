"""The package as a whole: what it exports, and what importing it brings along."""

from __future__ import annotations

import subprocess
import sys

import gpuspawner_runtime
import pytest


@pytest.mark.parametrize("name", gpuspawner_runtime.__all__)
def test_what_is_exported_is_there_whatever_was_imported_before(name: str) -> None:
    module = gpuspawner_runtime._EXPORTS[name]
    code = f"import gpuspawner_runtime.{module}\nfrom gpuspawner_runtime import {name}\nassert callable({name}), {name}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_importing_it_imports_no_torch_and_no_numpy() -> None:
    code = "import sys, gpuspawner_runtime; sys.exit(bool({'torch', 'numpy', 'fsspec'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_name_that_is_not_there_is_said_as_python_says_it() -> None:
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = gpuspawner_runtime.walk
