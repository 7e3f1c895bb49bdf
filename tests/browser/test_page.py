"""The hub's page about cards, by keyboard and mouse, on everything that `make up` starts."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from support.common import until
from support.stack import Stack, stack

pytestmark = [pytest.mark.browser, pytest.mark.hub, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
HOSTILE = "<img src=x onerror=window.hacked=1>"
LAPTOP, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole stack on cards of which people hold shares; what runs in them does not matter here."""
    with stack(tmp_path_factory.mktemp("hub"), "4*h100-80gb") as made:
        with made.service() as service:
            for user, share, server in (
                ("ann", "1/4", ""),
                ("bob", "1/8", "lab"),
                ("cee", "1", ""),
                (HOSTILE, "1/2", ""),
            ):
                answer = service.post("/sessions", json={"user": user, "server": server, "share": share})
                assert answer.status_code == 201, answer.text
        yield made


def signed_in(browser: Browser, hub: Stack, user: str, **how: Any) -> Page:
    """The hub's home page of somebody."""
    context = browser.new_context(viewport=LAPTOP, **how)
    context.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    page = context.new_page()
    page.goto(f"{hub.url}/hub/login?next=%2Fhub%2Fhome")
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(hub.secret("admin_password" if user == "admin" else "user_password"))
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile(r"/hub/home"))
    return page


@pytest.fixture(scope="module")
def admin(chromium: Browser, hub: Stack) -> Iterator[Page]:
    """The administrator's page, reached by the hub's navigation."""
    page = signed_in(chromium, hub, "admin")
    page.get_by_role("button", name="Services").click()
    page.get_by_role("link", name="GPU cards").click()
    expect(page.get_by_role("grid", name="Cards")).to_be_visible()
    yield page
    page.context.close()


@pytest.fixture(autouse=True)
def last_picture(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "admin" in request.fixturenames:
        folder = ROOT / "test-output"
        folder.mkdir(exist_ok=True)
        request.getfixturevalue("admin").screenshot(path=folder / "last-admin-page.png")


#: Those that the documentation shows.
SHOWN = ("page-cards-laptop-light", "page-drain")


def picture(page: Page, pictures: Path, name: str) -> None:
    """Keep what the page shows, for the documentation or for whoever looks at pictures."""
    page.mouse.move(0, 0)  # what a pointer hovers over looks chosen
    page.screenshot(path=(pictures if name in SHOWN else ROOT / "test-output/images") / f"{name}.png")


def rows(page: Page) -> Locator:
    return page.get_by_role("grid", name="Cards").locator(".gpa-card")


def opened(page: Page, hash_: str = "") -> Locator:
    """The page at a link; what is open beside its list."""
    page.evaluate("hash => { location.hash = hash }", hash_ or "#tab=cards")
    return page.get_by_role("complementary", name="Details")


def test_who_holds_what_in_a_bar_and_in_words(admin: Page, hub: Stack) -> None:
    expect(rows(admin)).to_have_count(4)
    first = rows(admin).first
    expect(first.get_by_role("img")).to_have_attribute(
        "aria-label", f"Eighths: ann 2, bob / lab 1, {HOSTILE} 4, free 1"
    )
    expect(first).to_contain_text("simulated")
    expect(first).to_contain_text(re.compile(r"0\.0 / 79\.6 GiB.*\d+ °C.*\d+ W"))
    assert admin.evaluate("window.hacked") is None
    assert admin.locator("#panel img").count() == 0
    with hub.service() as service:  # somebody with a name for pictures instead
        (session,) = service.get("/sessions", params={"user": HOSTILE}).json()["sessions"]
        service.delete(f"/sessions/{session['id']}")
        expect(first.get_by_role("img")).to_have_attribute("aria-label", "Eighths: ann 2, bob / lab 1, free 5")
        assert service.post("/sessions", json={"user": "dan", "share": "1/2"}).status_code == 201
    expect(first).to_contain_text("dan 4/8")


def test_a_card_is_taken_out_of_use_and_back_by_keyboard(admin: Page, hub: Stack) -> None:
    opened(admin)
    grid = admin.get_by_role("grid", name="Cards")
    grid.focus()
    for key in ("Home", "ArrowDown", "ArrowDown", "Enter"):
        admin.keyboard.press(key)
    detail = admin.get_by_role("complementary", name="Details")
    expect(detail.get_by_role("heading", level=2)).to_have_text("Card 1 of this machine")
    expect(detail.get_by_role("heading", level=2)).to_be_focused()
    detail.get_by_role("button", name="Out of use…").press("Enter")
    field = detail.get_by_label("Reason")
    expect(field).to_be_focused()
    admin.keyboard.press("Enter")
    expect(detail.get_by_role("alert")).to_contain_text("Give a reason first")
    admin.keyboard.type("Lüfter zu laut")
    admin.keyboard.press("Enter")
    expect(admin.get_by_text("Card 1 of this machine takes nothing new.")).to_be_visible()
    expect(rows(admin).nth(1)).to_contain_text("out of use")
    with hub.service() as service:
        (cordon,) = service.get("/cordons").json()["cordons"]
        assert (cordon["by"], cordon["reason"]) == ("admin", "Lüfter zu laut")
        until(  # written once the answer is known, so after it
            lambda: service.get("/audit").json()["entries"][0]["why"] == "Lüfter zu laut", what="the row in the audit"
        )
    admin.get_by_role("button", name="Undo").press("Enter")
    expect(rows(admin).nth(1)).not_to_contain_text("out of use")
    admin.keyboard.press("Escape")
    opened(admin)


def test_a_share_is_resized_with_a_reason_and_back(admin: Page) -> None:
    detail = opened(admin, "#tab=sessions")
    admin.get_by_role("searchbox").fill("bob")
    row = admin.get_by_role("grid", name="Sessions").locator(".gpa-session")
    expect(row).to_have_count(1)
    row.click()
    detail.get_by_role("button", name="Resize…").click()
    expect(detail.get_by_text(re.compile("Others hold .* of this card"))).to_have_count(2)
    detail.locator("input[value='1/4']").check()
    detail.get_by_label("Reason").fill("a demonstration")
    detail.get_by_role("button", name="Resize", exact=True).click()
    expect(admin.get_by_text("bob / lab has 1/4 of the card now, 1/8 before.")).to_be_visible()
    expect(row).to_contain_text("GPU 1/4")
    admin.get_by_role("button", name="Undo").click()
    expect(row).to_contain_text("GPU 1/8")
    admin.get_by_role("link", name="Audit").click()
    expect(admin.get_by_role("cell", name="undone: a demonstration")).to_be_visible()


def test_a_drain_ends_what_runs_and_tells_who_it_was(admin: Page, hub: Stack, pictures: Path) -> None:
    detail = opened(admin, "#tab=cards")
    rows(admin).filter(has_text="cee").click()
    detail.get_by_role("button", name="Drain…").click()
    detail.get_by_label("Reason").fill("the board is replaced")
    picture(admin, pictures, "page-drain")
    detail.get_by_role("radio", name=re.compile("^now")).check()
    detail.get_by_role("button", name="Drain", exact=True).click()
    row = rows(admin).nth(1)
    expect(row).to_contain_text("draining")
    expect(row).to_contain_text("nobody")
    detail.get_by_role("button", name="Back into use…").click()
    detail.get_by_label("Reason").fill("done")
    detail.get_by_role("button", name="Take back into use").click()
    expect(row).not_to_contain_text("draining")
    with hub.service() as service:
        (session,) = service.get("/sessions", params={"user": "cee", "ended": True}).json()["sessions"]
    assert session["end_reason"] == "its card was drained: the board is replaced"


def test_who_waits_is_put_behind_and_back_by_keyboard_with_a_reason(
    admin: Page, hub: Stack, accessible: Callable[[Page], None], pictures: Path
) -> None:
    with hub.service() as service:
        # the whole of it, which nobody gives way for, so that both wait
        for user in ("eve", "fay"):
            body = {"user": user, "share": "4", "wait": True}
            assert service.post("/sessions", json=body).status_code == 202
        admin.get_by_role("link", name="Queue", exact=True).click()
        lines = admin.get_by_role("region", name="Who waits").locator("tbody tr")
        expect(lines).to_contain_text(["eve", "fay"])
        lines.first.get_by_role("button", name="eve").press("Enter")
        detail = admin.get_by_role("complementary", name="Details")
        expect(detail).to_contain_text("interactive")
        accessible(admin)
        picture(admin, pictures, "page-waiting")
        detail.get_by_role("button", name="Class or deadline…").press("Enter")
        expect(detail.get_by_role("radio", name="inference-urgent")).to_be_focused()
        detail.get_by_role("radio", name="interactive").focus()
        for key in ("ArrowDown", "ArrowDown", "Tab"):
            admin.keyboard.press(key)
        expect(detail.get_by_role("radio", name="batch")).to_be_checked()
        detail.get_by_label("Deadline").fill("2099-12-31T18:00")
        detail.get_by_label("Reason").focus()
        admin.keyboard.press("Enter")
        expect(detail.get_by_role("alert")).to_contain_text("Give a reason first")
        admin.keyboard.type("the lecture goes first")
        accessible(admin)
        picture(admin, pictures, "page-prioritise")
        admin.keyboard.press("Enter")
        expect(
            admin.get_by_text(re.compile(r"eve is batch, due .*2099.* now: number 2 in the queue\."))
        ).to_be_visible()
        expect(lines).to_contain_text(["fay", "eve"])
        expect(detail).to_contain_text("Class or deadline set by admin: the lecture goes first")
        (_, eve) = service.get("/queue").json()["queue"]
        assert (eve["kind"], eve["changed_by"], eve["place"]) == ("batch", "admin", 2)
        admin.get_by_role("button", name="Undo").press("Enter")
        expect(lines).to_contain_text(["eve", "fay"])
        detail.get_by_role("button", name="Out of the queue…").press("Enter")
        detail.get_by_label("Reason").fill("it was a mistake")
        admin.keyboard.press("Enter")
        expect(lines).to_contain_text(["fay"])
        expect(detail).to_contain_text("It does not wait any more")
        admin.get_by_role("link", name="Audit").click()
        expect(admin.get_by_role("cell", name="undone: the lecture goes first", exact=True)).to_be_visible()
        (fay,) = service.get("/queue").json()["queue"]
        service.delete(f"/sessions/{fay['id']}")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", ["laptop", "phone"])
def test_no_serious_fault_for_those_who_cannot_see(
    admin: Page, accessible: Callable[[Page], None], pictures: Path, theme: str, size: str
) -> None:
    admin.set_viewport_size(PHONE if size == "phone" else LAPTOP)
    admin.evaluate("theme => localStorage.setItem('jupyterhub-bs-theme', theme)", theme)
    try:
        admin.goto(f"{admin.url.partition('#')[0]}#tab=cards")
        admin.reload()
        expect(admin.locator("html")).to_have_attribute("data-theme", theme)
        expect(rows(admin)).to_have_count(4)
        accessible(admin)
        picture(admin, pictures, f"page-cards-{size}-{theme}")
        assert admin.evaluate("document.documentElement.scrollWidth <= innerWidth")
        rows(admin).first.click()
        detail = admin.get_by_role("complementary", name="Details")
        expect(detail).to_contain_text("Who holds what")
        detail.get_by_role("button", name="Drain…").click()
        accessible(admin)
        picture(admin, pictures, f"page-card-{size}-{theme}")
        for tab in ("Sessions", "Queue", "Spending", "Audit"):
            admin.get_by_role("link", name=tab, exact=True).click()
            expect(admin.get_by_role("region", name=tab, exact=True)).to_be_visible()
            expect(admin.locator("[aria-busy=true]")).to_have_count(0)
            accessible(admin)
            picture(admin, pictures, f"page-{tab.lower()}-{size}-{theme}")
    finally:
        admin.set_viewport_size(LAPTOP)


def test_a_lost_connection_is_said_and_what_is_shown_goes_on(
    admin: Page, accessible: Callable[[Page], None], pictures: Path
) -> None:
    opened(admin)
    expect(rows(admin)).to_have_count(4)
    admin.route(re.compile("panel/events"), lambda route: route.abort())
    admin.evaluate("dispatchEvent(new Event('online'))")
    admin.reload()
    expect(admin.get_by_text("Looking at the cards…")).to_be_visible()
    expect(admin.get_by_text("The connection was lost.")).to_be_visible()
    picture(admin, pictures, "page-reconnecting-empty")
    admin.unroute(re.compile("panel/events"))
    admin.get_by_role("button", name="Try now").click()
    expect(rows(admin)).to_have_count(4)
    expect(admin.get_by_text("The connection was lost.")).to_have_count(0)


def test_a_service_that_dies_is_missed_and_found_again(
    admin: Page, hub: Stack, accessible: Callable[[Page], None], pictures: Path
) -> None:
    expect(rows(admin)).to_have_count(4)
    os.kill(hub.pid_of("service"), signal.SIGKILL)
    expect(admin.get_by_text(re.compile("What you see is from"))).to_be_visible()
    expect(rows(admin)).to_have_count(4)
    accessible(admin)
    picture(admin, pictures, "page-reconnecting")
    expect(admin.get_by_text(re.compile("What you see is from"))).to_have_count(0)


def test_people_see_their_own_and_links_survive_the_sign_in(
    chromium: Browser, hub: Stack, accessible: Callable[[Page], None], pictures: Path
) -> None:
    context = chromium.new_context(viewport=LAPTOP)
    context.set_default_timeout(60_000)
    page = context.new_page()
    with hub.service() as service:
        (session,) = service.get("/sessions", params={"user": "ann"}).json()["sessions"]
    page.goto(f"{hub.url}/services/gpuspawner/#session={session['id']}")
    page.get_by_label("Username").fill("ann")
    page.get_by_label("Password").fill(hub.user_password)
    page.get_by_role("button", name="Sign in").click()
    detail = page.get_by_role("complementary", name="Details")
    expect(detail.get_by_role("heading", level=2)).to_have_text("ann")
    expect(page.get_by_role("link", name="Your sessions")).to_be_visible()
    expect(page.get_by_role("link", name="Audit")).to_have_count(0)
    expect(page.get_by_role("grid", name="Sessions").locator(".gpa-session")).to_have_count(1)
    expect(detail.get_by_role("button", name="End…")).to_have_count(0)
    expect(detail.get_by_role("button", name="Resize…")).to_be_enabled()
    accessible(page)
    picture(page, pictures, "page-own")
    assert "bob" not in page.content()
    page.get_by_role("link", name="Your cards").click()
    expect(page.locator(".gpa-card").get_by_role("img")).to_have_attribute(
        "aria-label", "Eighths: ann 2, others 5, free 1"
    )
    page.get_by_role("link", name="Your costs").click()
    expect(page.get_by_role("row", name=re.compile("^ann"))).to_be_visible()
    context.close()


def test_who_holds_nothing_is_told_how_to_get_some(chromium: Browser, hub: Stack, pictures: Path) -> None:
    page = signed_in(chromium, hub, "dee")
    page.goto(f"{hub.url}/services/gpuspawner/")
    expect(page.get_by_text("Start a server from the hub’s home page.")).to_be_visible()
    picture(page, pictures, "page-empty")
    # signed out elsewhere: the next question that the service takes to the hub says so
    page.context.request.get(f"{hub.url}/hub/logout")
    out = page.get_by_text(re.compile("You are signed out"))

    def noticed() -> bool:
        for tab in ("Your costs", "Queue"):
            page.get_by_role("link", name=tab).click()
            page.wait_for_timeout(300)
        return out.is_visible()

    until(noticed, 90, "the end of the sign-in")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_label("Username")).to_be_visible()
    page.context.close()
