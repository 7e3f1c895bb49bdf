"""A real Chromium on everything that `make up` starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from support import act
from support.stack import Stack, stack

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole stack on two simulated cards."""
    with stack(tmp_path_factory.mktemp("hub")) as made:
        yield made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One Chromium for all tests of a module."""
    with act.chromium() as made:
        yield made


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A fresh page the size of a 13-inch screen. What it showed last is kept where a test failed."""
    with act.fresh_page(chromium) as made:
        yield made


@pytest.fixture(scope="session")
def accessible() -> Callable[[Page], None]:
    """Asserts that axe-core finds no serious or critical fault on the page as it is now."""
    source = (ROOT / "extensions/lab/node_modules/axe-core/axe.min.js").read_text()

    def check(page: Page) -> None:
        page.evaluate(source)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        faults = {
            fault["id"]: [node["html"][:200] for node in fault["nodes"]][:3]
            for fault in found
            if fault["impact"] in ("serious", "critical")
        }
        assert not faults, faults

    return check


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where the README's screenshots go: into the docs with GPUSPAWNER_UPDATE_SCREENSHOTS=1, else to test-output."""
    folder = ROOT / ("docs/images" if os.environ.get("GPUSPAWNER_UPDATE_SCREENSHOTS") else "test-output/images")
    folder.mkdir(parents=True, exist_ok=True)
    (ROOT / "test-output/images").mkdir(parents=True, exist_ok=True)
    return folder
