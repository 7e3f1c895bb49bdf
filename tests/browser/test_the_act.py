"""The act that this project exists for, as a person does it: sign in, pick a share, compute, resize it live."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.act import sign_in, the_act
from support.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.hub, pytest.mark.timeout(420)]


def test_sign_in_pick_a_share_compute_resize(page: Page, hub: Stack, pictures: Path) -> None:
    the_act(page, hub, "ann", pictures)


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
