"""Fixtures of the tests that start real programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.hub import Hub
from support.stack import stack


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """Everything that `make up` starts, on two simulated cards, for the tests of one module."""
    with stack(tmp_path_factory.mktemp("hub")) as made:
        yield Hub(made)


@pytest.fixture
def own_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """The same for one test alone, which may end it."""
    with stack(tmp_path_factory.mktemp("own")) as made:
        yield Hub(made)
