"""A real Chromium on everything that `make up` starts."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
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


def sign_in(page: Page, hub: Stack, user: str) -> None:
    """Sign in by the login form; without a server the form follows."""
    page.goto(hub.url)
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(hub.user_password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile(r"/(hub/(spawn|home)|user)"))


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
