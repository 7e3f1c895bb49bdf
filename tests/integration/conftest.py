"""Fixtures of the tests that start real programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hub import Hub
from support.limits import Cards, Outside, cards, fake_driver, outside, wait_until
from support.stack import stack

from gpuspawner.node.limits import build, measure


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


@pytest.fixture
def driver(tmp_path: Path) -> build.DriverFiles:
    folder = tmp_path / "driver"
    folder.mkdir()
    return fake_driver(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cards]:
    """Two simulated cards for the tests of one module."""
    with cards(tmp_path_factory.mktemp("cards")) as found:
        yield found


@pytest.fixture(scope="module")
def uuids(made: Cards) -> list[str]:
    return made.uuids()


@pytest.fixture(scope="module")
def context(made: Cards, uuids: list[str]) -> int:
    """Bytes that a context takes."""
    found = measure.context_bytes(made.driver())
    assert set(found) == set(uuids)
    assert len(set(found.values())) == 1
    return found[uuids[0]]


@pytest.fixture
def out(tmp_path: Path, made: Cards) -> Iterator[Outside]:
    """Programs behind the shim under limits of their own; afterwards the driver shows nothing left of them."""
    with outside(tmp_path, made) as found:
        yield found
    wait_until(lambda: made.used() == made.used(1) == 0, "the cards' being empty again")
