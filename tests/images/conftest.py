"""The notebook images as they were built (`make test-images` builds them), each in a container with a share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.container import Share, share, why_not

import gpuspawner

GIB = 1 << 30
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.images)
            item.add_marker(pytest.mark.timeout(600), append=False)


@pytest.fixture(scope="session")
def image() -> Callable[[str], str]:
    """The full name of an image; the test is skipped where it is not there."""

    def named(name: str) -> str:
        full = f"localhost/gpuspawner-{name}:{gpuspawner.__version__}"
        reason = why_not(full)
        if reason:
            pytest.skip(reason)
        return full

    return named


@pytest.fixture
def quarter(tmp_path: Path) -> Iterator[Share]:
    """A quarter of a simulated card, with 20 GiB."""
    tmp_path.chmod(0o755)
    with share(tmp_path / "share", 2, 20 * GIB) as (made, _):
        yield made
