"""What the package asks for is what the lock file brings."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[2] / "images/examples/pyproject.toml"


def test_all_that_the_package_asks_for_is_there() -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    wanted = [Requirement(text) for text in project["dependencies"] + project["optional-dependencies"]["test"]]
    assert len(wanted) >= 5
    for one in wanted:
        assert one.specifier.contains(version(one.name)), f"{one.name} is {version(one.name)}, and {one} is asked for"
