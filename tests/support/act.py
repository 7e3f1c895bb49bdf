"""The act that this project exists for, as a person does it in a browser, wherever the hub is."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

GIB = 1 << 30
_OUTPUT = Path(__file__).parents[2] / "test-output"
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


class Place(Protocol):
    """A hub: its address, its users' shared password, and a client of its service that asks as the hub."""

    @property
    def url(self) -> str: ...

    @property
    def user_password(self) -> str: ...

    def service(self) -> AbstractContextManager[httpx.Client]: ...


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium; the test is skipped where there is none, but not in CI."""
    program = os.environ.get("GPUSPAWNER_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        reason = "no Chromium here: install Debian's package chromium, or name one in GPUSPAWNER_TEST_CHROMIUM"
        assert "CI" not in os.environ, reason
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def fresh_page(browser: Browser) -> Iterator[Page]:
    """A fresh page the size of a 13-inch screen. What it showed last is kept."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    made = context.new_page()
    try:
        yield made
    finally:
        _OUTPUT.mkdir(exist_ok=True)
        made.screenshot(path=_OUTPUT / "last-page.png")
        context.close()


def sign_in(page: Page, place: Place, user: str) -> None:
    """Sign in by the login form; without a server the form follows."""
    page.goto(place.url)
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(place.user_password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile(r"/(hub/(spawn|home)|user)"))


class Notebook:
    """The tour in JupyterLab, run cell by cell."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.cells = page.locator(".jp-Notebook .jp-CodeCell")
        self.next = 0

    def run(self) -> Locator:
        """Run the next code cell; its output, once it has finished."""
        cell = self.cells.nth(self.next)
        self.next += 1
        cell.scroll_into_view_if_needed()
        cell.locator(".jp-InputArea-editor").click()
        self.page.keyboard.press("Control+Enter")
        expect(cell.locator(".jp-InputArea-prompt")).to_have_text(re.compile(r"\[\d+\]:"))
        return cell.locator(".jp-OutputArea")


def chunks(output: Locator) -> int:
    """How many chunks `fill` says there are in all; it must say OUT_OF_MEMORY too."""
    text = output.inner_text()
    assert "CUDA_ERROR_OUT_OF_MEMORY" in text
    found = re.search(r"= (\d+) chunks", text)
    assert found, text
    return int(found.group(1))


def the_act(page: Page, place: Place, user: str, pictures: Path, start_seconds: float = 90) -> None:
    """Sign in, pick an eighth, start, run the tour cell by cell; the ledger has each change. Cards are of 80 GB. Its
    pictures go to the folder `pictures`."""
    sign_in(page, place, user)

    # The form: what is free now, each with memory and price.
    eighth = page.get_by_role("radio", name="1/8 of a card")
    expect(eighth).to_be_enabled()
    form = page.locator("#gpu-form")
    expect(form).to_contain_text("Simulated cards")
    for words in ("10 GiB", "19.9 GiB", "39.8 GiB", "79.6 GiB", "EUR"):
        expect(form).to_contain_text(words)
    eighth.check()
    expect(page.locator("#gpu-fresh.live")).to_be_visible()
    page.screenshot(path=pictures / "spawn-form.png", full_page=True)
    page.get_by_role("button", name="Start").click()

    # Progress, then JupyterLab with the tour.
    page.wait_for_url(re.compile(rf"/user/{user}/lab/tree/tour\.ipynb"), timeout=start_seconds * 1000)
    status = page.locator(".jp-gpu-item")
    tour = Notebook(page)
    expect(tour.cells.first).to_be_visible()
    expect(page.get_by_role("contentinfo")).to_contain_text("Python 3 (ipykernel) | Idle")
    expect(status).to_contain_text("1/8")

    expect(tour.run()).to_contain_text("simulated")  # %gpu
    expect(tour.run()).to_contain_text("10.0 GiB")  # tools
    before = chunks(tour.run())  # fill
    expect(status).to_contain_text(re.compile(r"(9\.\d|10\.0) / 10\.0 GiB"))
    page.screenshot(path=pictures / "tour.png")
    tour.run()  # the note

    expect(tour.run()).to_contain_text("1/2")  # %gpu resize 1/2
    after = chunks(tour.run())
    assert after > 3 * before
    expect(tour.run()).to_contain_text("I was here before the resize.")
    expect(status).to_contain_text("1/2")
    expect(status).to_contain_text(re.compile(r"39\.\d / 39\.8 GiB"))
    page.screenshot(path=pictures / "resize.png")

    refused = tour.run()  # %gpu resize 1/8, too small
    expect(refused).to_contain_text(re.compile("[Ff]ree"))
    expect(refused).not_to_contain_text("Traceback")
    with place.service() as service:
        (session,) = service.get("/sessions", params={"user": user}).json()["sessions"]
        assert session["share"] == "1/2"
        used = session["memory_used_bytes"]  # on a cluster the service does not know it
        assert used is None or 39 * GIB < used <= session["memory_bytes"]
    expect(tour.run()).to_contain_text("1/2")

    tour.run()  # free
    expect(tour.run()).to_contain_text("1/8")
    expect(tour.run()).to_contain_text("I was here before the resize.")
    tour.run()
    expect(status).to_contain_text("1/8")
    expect(page.get_by_text("official Jupyter news")).to_have_count(0)

    with place.service() as service:
        rows = service.get("/events", params={"session": session["id"]}).json()["events"]
    assert [(row["kind"], row["eighths"]) for row in rows] == [("resize", 1), ("resize", 4), ("start", 1)]
    assert {row["actor"] for row in rows} == {"hub", user}
