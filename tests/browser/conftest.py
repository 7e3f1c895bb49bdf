"""A real Chromium on everything that `make up` starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from support.stack import Stack, stack

ROOT = Path(__file__).parents[2]
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole stack on two simulated cards."""
    with stack(tmp_path_factory.mktemp("hub")) as made:
        yield made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One Chromium for all tests of a module."""
    program = os.environ.get("GPUSPAWNER_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        reason = "no Chromium here: install Debian's package chromium, or name one in GPUSPAWNER_TEST_CHROMIUM"
        assert "CI" not in os.environ, reason
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A fresh page the size of a 13-inch screen. What it showed last is kept where a test failed."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    made = context.new_page()
    yield made
    folder = ROOT / "test-output"
    folder.mkdir(exist_ok=True)
    made.screenshot(path=folder / "last-page.png")
    context.close()


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where the README's screenshots go: into the docs with GPUSPAWNER_UPDATE_SCREENSHOTS=1, else to test-output."""
    folder = ROOT / ("docs/images" if os.environ.get("GPUSPAWNER_UPDATE_SCREENSHOTS") else "test-output/images")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
