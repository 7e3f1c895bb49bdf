"""The act that this project exists for, as a person does it: sign in, pick a share, compute, resize it live."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from support.stack import Stack

from .conftest import sign_in

pytestmark = [pytest.mark.browser, pytest.mark.hub, pytest.mark.timeout(420)]

GIB = 1 << 30


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


def test_sign_in_pick_a_share_compute_resize(page: Page, hub: Stack, pictures: Path) -> None:
    sign_in(page, hub, "ann")

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
    page.wait_for_url(re.compile(r"/user/ann/lab/tree/tour\.ipynb"), timeout=90_000)
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
    with hub.service() as service:
        (session,) = service.get("/sessions", params={"user": "ann"}).json()["sessions"]
        assert session["share"] == "1/2"
        assert 39 * GIB < session["memory_used_bytes"] <= session["memory_bytes"]
    expect(tour.run()).to_contain_text("1/2")

    tour.run()  # free
    expect(tour.run()).to_contain_text("1/8")
    expect(tour.run()).to_contain_text("I was here before the resize.")
    tour.run()
    expect(status).to_contain_text("1/8")
    expect(page.get_by_text("official Jupyter news")).to_have_count(0)

    with hub.service() as service:
        rows = service.get("/events", params={"session": session["id"]}).json()["events"]
    assert [(row["kind"], row["eighths"]) for row in rows] == [("resize", 1), ("resize", 4), ("start", 1)]
    assert {row["actor"] for row in rows} == {"hub", "ann"}


@pytest.mark.case("hub-9")
def test_what_is_taken_says_the_reason_and_can_be_waited_for(page: Page, hub: Stack) -> None:
    with hub.service() as service:
        held = [
            service.post("/sessions", json={"user": f"holder{n}", "share": share}).json()["session"]["id"]
            for n, share in enumerate(["1", "1/2"])
        ]
        try:
            sign_in(page, hub, "bob")
            whole = page.get_by_role("radio", name="A whole card")
            expect(whole).to_be_enabled()
            card = page.locator("label", has=whole)
            expect(card).to_contain_text("No whole card is free now")
            expect(card).to_contain_text("You would wait. For how long is not known.")
            expect(page.get_by_role("radio", name="1/8 of a card")).to_be_enabled()
        finally:
            for session in held:
                service.delete(f"/sessions/{session}")
