"""The form, the progress page and the failure page, as people use them: by keyboard, without scripts, on a phone."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from support.act import sign_in
from support.common import until
from support.hub import Hub
from support.stack import Stack, stack

pytestmark = [pytest.mark.browser, pytest.mark.hub, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
#: Pictures that the documentation shows; the others are for whoever changes the pages.
DOCUMENTED = ("progress-light", "failure-light")
Check = Callable[[Page], None]

#: A server that says something, a secret included, and ends; it waits for a file in the user's home first.
_ENDS = """#!/bin/sh
echo "Loading extensions"
until [ -e "$HOME/go-on" ]; do sleep 0.1; done
echo "ModuleNotFoundError: No module named 'jupyterlab_of_mine'" >&2
echo "token=0123456789abcdef" >&2
exit 3
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with two environments, of which one never gets ready."""
    folder = tmp_path_factory.mktemp("form")
    folder.chmod(0o711)
    # below the checkout, which sessions can read
    ends = ROOT / "test-output" / f"ends-{folder.parent.name}.sh"
    ends.parent.mkdir(exist_ok=True)
    ends.write_text(_ENDS)
    ends.chmod(0o755)
    config = folder / "config.py"
    config.write_text(
        f"load_subconfig({str(ROOT / 'jupyterhub_config.py')!r})\n"
        "c.LocalGPUSpawner.environments = [\n"
        f"    dict(name='lab', title='JupyterLab', description='With the tour.', python={sys.executable!r}),\n"
        f"    dict(name='ends', title='My research', description='Our own packages.', command=[{str(ends)!r}]),\n"
        "]\n"
    )
    with stack(folder / "state", env={"GPUSPAWNER_HUB_CONFIG": str(config)}) as made:
        yield made
    ends.unlink()


def start_what_ends(page: Page) -> None:
    page.get_by_text("More choices").click()
    page.get_by_role("radio", name="My research").check()
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="is starting")).to_be_visible()


def go_on(hub: Stack, user: str) -> None:
    """Let the unfinished server of `user` end."""
    with hub.service() as service:
        (session,) = service.get("/sessions", params={"user": user}).json()["sessions"]
    assert session["state"] in ("starting", "running")
    (home,) = (hub.state / "users").glob(f"{user}*")
    (home / "go-on").touch()


def test_the_form_follows_what_others_take_and_keeps_what_was_chosen(page: Page, hub: Stack) -> None:
    sign_in(page, hub, "ann")
    whole = page.get_by_role("radio", name="A whole card")
    whole.check()
    half = page.get_by_role("radio", name="1/2 of a card")
    expect(half).to_be_enabled()
    expect(page.locator("#gpu-sum")).to_contain_text("A whole card · 79.6 GiB · 3.20 EUR per hour · JupyterLab")
    held = []
    with hub.service() as service:
        try:
            for user, share in (("x", "1"), ("y", "1/2"), ("z", "1/4")):
                answer = service.post("/sessions", json={"user": user, "share": share})
                held.append(answer.json()["session"]["id"])
            # without a reload: marked with the reason; the choice is kept, and told to be one to wait for
            expect(page.locator("label.taken", has=half)).to_contain_text(
                "The most that is free on one card now is 1/4. You would wait. For how long is not known."
            )
            expect(half).to_be_enabled()
            expect(whole).to_be_checked()
            expect(page.locator("#gpu-sum")).to_contain_text("You wait for: A whole card")
        finally:
            for session in held:
                service.delete(f"/sessions/{session}")
    expect(half).to_be_enabled()
    expect(page.locator("#gpu-sum")).to_contain_text("You start: A whole card")
    expect(whole).to_be_checked()


def test_who_waits_sees_its_place_and_is_let_in_when_somebody_stops(
    page: Page, hub: Stack, accessible: Check, pictures: Path
) -> None:
    with hub.service() as service:
        held = service.post("/sessions", json={"user": "x", "share": "2"}).json()["session"]["id"]
        try:
            sign_in(page, hub, "ivo")
            expect(page.locator("#gpu-full")).to_contain_text("Choose one to wait for it")
            page.get_by_role("radio", name="1/2 of a card").check()
            expect(page.locator("#gpu-sum")).to_contain_text("You wait for: 1/2 of a card")
            page.get_by_role("button", name="Start").click()
            expect(page.locator("#gpu-status")).to_have_text("Waiting for your turn.")
            told = page.locator('[data-part="place"] .gpu-said')
            expect(told).to_contain_text("Number 1 in the queue. All of it is in use now. For how long is not known.")
            accessible(page)
            page.screenshot(path=pictures.parents[1] / "test-output/images/waiting-light.png", full_page=True)
            page.reload()
            expect(told).to_contain_text("Number 1 in the queue.")
            # given up, and waited for again
            page.get_by_role("button", name="Cancel").click()
            expect(page.get_by_text("The start was cancelled.")).to_be_visible()
            assert service.get("/queue").json()["queue"] == []
            page.get_by_role("radio", name="1/2 of a card").check()
            page.get_by_text("More choices").click()
            page.get_by_label("Class of work").select_option("batch")
            page.get_by_label("It will run for about").fill("1.5")
            page.get_by_label("It must be done by").fill("2098-12-24T18:00")
            page.get_by_role("button", name="Start").click()
            expect(told).to_contain_text("Number 1 in the queue.")
            (waits,) = service.get("/queue").json()["queue"]
            assert (waits["kind"], waits["deadline"][:10]) == ("batch", "2098-12-24")
        finally:
            service.delete(f"/sessions/{held}")
        page.wait_for_url(re.compile(r"/user/ivo/lab"))
        (session,) = service.get("/sessions", params={"user": "ivo"}).json()["sessions"]
        assert session["share"] == "1/2"
    page.request.delete(f"{hub.url}/hub/api/users/ivo/server", headers={"Authorization": f"token {hub.token('ivo')}"})


def test_a_hidden_tab_asks_nothing_and_a_hub_that_is_away_is_said(page: Page, hub: Stack) -> None:
    sign_in(page, hub, "bea")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.resource_type == "fetch" else None)
    expect(page.locator("#gpu-fresh.live")).to_be_visible()
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {configurable: true, get: () => true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.clock.install()
    asked.clear()
    page.clock.run_for(60_000)
    assert asked == []
    page.route("**/hub/spawn**", lambda route: route.abort())
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(1000)
    expect(page.locator("#gpu-fresh.stale")).to_contain_text("Cannot look up what is free")
    assert asked
    page.unroute("**/hub/spawn**")
    page.clock.run_for(4000)
    expect(page.locator("#gpu-fresh.live")).to_be_visible()


def test_links_choose_beforehand_and_never_start(page: Page, hub: Stack) -> None:
    sign_in(page, hub, "cleo")
    page.goto(f"{hub.url}/hub/spawn?share=1/2&model=h100-80gb&environment=ends")
    expect(page.get_by_role("radio", name="1/2 of a card")).to_be_checked()
    expect(page.get_by_role("radio", name="My research")).to_be_checked()
    expect(page.get_by_role("alert").filter(visible=True)).to_have_count(0)
    for query, said in (
        ("share=1/3", "share: '1/3' is not allowed"),
        ("share=1/4&model=v900", "which is not offered here"),
        ("share=%ff%fe&colour=red", "colour: unknown key"),
        ("environment=gone", "Allowed: lab, ends"),
    ):
        answer = page.goto(f"{hub.url}/hub/spawn?{query}")
        assert answer is not None
        assert answer.status == 200
        expect(page.locator(".gpu-notice").filter(has_text=said)).to_be_visible()
        expect(page.get_by_role("radio", name="1/4 of a card")).to_be_checked()
    assert Hub(hub).sessions("cleo") == []


def test_the_last_choice_is_remembered_for_each_server(page: Page, hub: Stack) -> None:
    with Hub(hub).user("dora") as dora:
        dora.form("one"), dora.form("two")
        dora.start({"share": "1/8", "environment": "lab"}, "one")
        dora.start({"share": "none"}, "two")
        dora.stop("one")
        dora.stop("two")
    sign_in(page, hub, "dora")
    for server, name in (("/dora/one", "1/8 of a card"), ("/dora/two", "No card"), ("", "1/4 of a card")):
        page.goto(f"{hub.url}/hub/spawn{server}")
        expect(page.get_by_role("radio", name=name)).to_be_checked()


def test_a_refused_form_comes_back_as_it_was_filled_in(page: Page, hub: Stack) -> None:
    sign_in(page, hub, "eve")
    page.goto(f"{hub.url}/hub/spawn/eve/named")
    page.get_by_role("radio", name="1/2 of a card").check()
    held = []
    with hub.service() as service:
        try:
            # as where nobody may wait
            page.evaluate("document.querySelector('input[name=wait]').remove()")
            for user in ("x", "y"):
                answer = service.post("/sessions", json={"user": user, "share": "1"})
                held.append(answer.json()["session"]["id"])
            page.get_by_role("button", name="Start").click()
            expect(page.locator(".spawn-error-msg")).to_contain_text("1/2 of a card (H100 80 GB) cannot be started now")
            expect(page.locator("#gpu-failure")).to_contain_text("nothing is charged")
            expect(page.locator("#gpu-full")).to_be_visible()
        finally:
            for session in held:
                service.delete(f"/sessions/{session}")
    assert Hub(hub).sessions("eve") == []


def test_without_scripts(chromium: Browser, hub: Stack) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, hub, "fay")
    expect(page.get_by_text("What is free was looked up at")).to_be_visible()
    page.get_by_role("radio", name="No card").check()
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(re.compile(r"/user/fay/lab|/hub/spawn-pending/fay"))
    (session,) = until(lambda: Hub(hub).sessions("fay"), what="a session")
    assert (session["share"], session["cards"]) == ("none", [])
    with Hub(hub).user("fay") as fay:
        fay.ready()
        assert "No GPU" in str(fay.server()["user_options"])
    context.close()


def test_by_keyboard_alone(page: Page, hub: Stack) -> None:
    sign_in(page, hub, "gus")
    expect(page.get_by_role("radio", name="1/4 of a card")).to_be_checked()
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "share":
            break
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("radio", name="1/8 of a card")).to_be_checked()
    page.keyboard.press("Tab")
    expect(page.locator("summary")).to_be_focused()
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    expect(page.get_by_role("radio", name="JupyterLab")).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="is starting")).to_be_visible()
    cancel = page.get_by_role("button", name="Cancel")
    cancel.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("The start was cancelled. Nothing is held and nothing is charged.")).to_be_visible()
    assert Hub(hub).sessions("gus") == []
    assert Hub(hub).free_eighths() == 16


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible_and_fits_a_phone(
    chromium: Browser, hub: Stack, accessible: Check, pictures: Path, scheme: str
) -> None:
    user = {"light": "hal", "dark": "ida"}[scheme]
    context = chromium.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 800})  # type: ignore[arg-type]
    page = context.new_page()

    def look(name: str) -> None:
        assert page.evaluate("document.documentElement.dataset.bsTheme") == scheme
        accessible(page)
        folder = pictures if f"{name}-{scheme}" in DOCUMENTED else ROOT / "test-output" / "images"
        page.screenshot(path=folder / f"{name}-{scheme}.png", full_page=True)
        page.set_viewport_size({"width": 320, "height": 640})
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, name
        page.set_viewport_size({"width": 1280, "height": 800})

    page.goto(hub.url)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.locator("#gpu-sign-in")).to_contain_text("Choose any name.")
    page.set_viewport_size({"width": 320, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.screenshot(path=ROOT / "test-output" / "images" / f"sign-in-{scheme}.png")
    page.set_viewport_size({"width": 1280, "height": 800})
    sign_in(page, hub, user)
    expect(page.locator("#gpu-fresh.live")).to_be_visible()
    page.get_by_text("More choices").click()
    look("form")
    page.goto(f"{hub.url}/hub/home")
    look("home")
    page.goto(f"{hub.url}/hub/spawn")
    start_what_ends(page)
    server = page.locator("#gpu-steps li", has_text="Your notebook server")
    expect(server).to_contain_text("The server is starting on card")
    expect(page.locator("#gpu-steps li[data-state=done]")).to_have_count(3)
    expect(server.locator("time")).to_have_text(re.compile(r"\d+\.\d s"))
    look("progress")
    go_on(hub, user)
    expect(page.get_by_role("heading", name="could not be started")).to_be_visible()
    failure = page.locator("#gpu-failure")
    expect(failure).to_contain_text("Your server ended with status 3")
    expect(failure).to_contain_text("its share of the card was given back")
    assert failure.inner_text().count("given back") == 1
    expect(failure).to_contain_text("No module named 'jupyterlab_of_mine'")
    expect(failure).not_to_contain_text("0123456789abcdef")
    look("failure")
    assert Hub(hub).sessions(user) == []
    page.get_by_role("link", name="Back to the form").click()
    expect(page.get_by_role("button", name="Start")).to_be_visible()
    context.close()


def test_the_theme_switch_of_the_hub_counts(page: Page, hub: Stack, accessible: Check) -> None:
    sign_in(page, hub, "jo")
    page.get_by_role("button", name="Toggle dark mode").click()
    assert page.evaluate("document.documentElement.dataset.bsTheme") == "dark"
    background = page.locator(".gpu-card").first.evaluate("card => getComputedStyle(card).backgroundColor")
    assert background == "rgb(33, 37, 41)"
    accessible(page)
