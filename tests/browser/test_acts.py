"""What an administrator does on the page and a user sees in JupyterLab; the end of a budget; a training that gives way.
Everything is that of `make up`, with parking on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from support.common import until
from support.pages import put, start_lab
from support.stack import Stack, stack

pytestmark = [pytest.mark.browser, pytest.mark.hub, pytest.mark.timeout(420)]

ROOT = Path(__file__).parents[2]
LAPTOP = {"width": 1280, "height": 800}
POLICY = """
version: 1
queue:
- {users: [ursa], default: inference-urgent}
- {users: [tom], default: training}
parking:
- {class: interactive, notice_seconds: 60}
"""
BUDGET = """
budgets:
- {name: course, users: [ann], money: "%s", warn: [1], grace_minutes: 0}
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy file, which tests change."""
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> Iterator[Stack]:
    env = {"GPUSPAWNER_PARKING": "yes", "GPUSPAWNER_POLICY": str(policy)}
    with stack(tmp_path_factory.mktemp("hub"), "2*h100-80gb", env=env) as made:
        yield made


def window(browser: Browser) -> Page:
    context = browser.new_context(viewport=LAPTOP)
    context.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    return context.new_page()


@pytest.fixture(scope="module")
def admin(chromium: Browser, hub: Stack) -> Iterator[Page]:
    """The administrator's page."""
    page = window(chromium)
    page.goto(f"{hub.url}/services/gpuspawner/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(hub.secret("admin_password"))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("grid", name="Cards")).to_be_visible()
    yield page
    page.screenshot(path=ROOT / "test-output/last-acts-admin.png")
    page.context.close()


@pytest.fixture(scope="module")
def lab(chromium: Browser, hub: Stack) -> Iterator[Page]:
    """JupyterLab of ann with half a card, and its panel."""
    page = window(chromium)
    start_lab(page, hub, "ann", "1/2")
    page.locator(".jp-gpu-item").click()
    expect(page.locator("#gpuspawner-panel")).to_be_visible()
    yield page
    page.screenshot(path=ROOT / "test-output/last-acts-lab.png")
    page.context.close()


def picture(page: Page, name: str, *themes: str) -> None:
    """What the page shows, for whoever looks at pictures."""
    folder = ROOT / "test-output/images"
    folder.mkdir(parents=True, exist_ok=True)
    page.mouse.move(0, 0)
    page.screenshot(path=folder / f"{name}.png")
    for theme in themes:
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        page.screenshot(path=folder / f"{name}-{theme}.png")
    page.emulate_media(color_scheme="light")


def session_of(hub: Stack, user: str) -> dict[str, Any]:
    with hub.service() as service:
        (found,) = service.get("/sessions", params={"user": user}).json()["sessions"]
    return dict(found)


def opened(page: Page, hash_: str) -> Locator:
    page.evaluate("hash => { location.hash = hash }", hash_)
    return page.get_by_role("complementary", name="Details")


def test_a_drain_tells_the_user_and_is_undone(lab: Page, admin: Page, hub: Stack) -> None:
    panel = lab.locator("#gpuspawner-panel")
    session = session_of(hub, "ann")
    detail = opened(admin, f"#card={session['cards'][0]['uuid']}")
    detail.get_by_role("button", name="Drain…").press("Enter")
    detail.get_by_role("radio", name="in an hour").check()
    detail.get_by_label("Reason").fill("the board is replaced")
    detail.get_by_label("Reason").press("Enter")
    row = admin.locator(".gpa-card", has_text="ann")
    expect(row).to_contain_text("draining")
    expect(detail).to_contain_text(re.compile(r"by admin: the board is replaced.*Its sessions end", re.DOTALL))
    told = panel.get_by_text("Your card is taken out of use: the board is replaced. Save your work")
    expect(told).to_be_visible()
    expect(panel.get_by_text(re.compile("Nothing grows on this card now")).first).to_be_visible()
    picture(admin, "act-drain-admin", "dark")
    picture(lab, "act-drain-lab")
    admin.get_by_role("button", name="Undo").press("Enter")
    expect(row).not_to_contain_text("draining")
    expect(told).to_have_count(0)
    assert session_of(hub, "ann")["id"] == session["id"]


def test_the_end_of_a_budget_is_told_before_and_shrinks_what_runs(
    lab: Page, admin: Page, hub: Stack, policy: Path
) -> None:
    panel = lab.locator("#gpuspawner-panel")

    def charge() -> float:
        with hub.service() as service:
            return float(service.get("/cost", params={"by": "user"}).json()["charge"])

    # enough is used that 1 % of the budget is, and not all of it for minutes
    until(lambda: charge() >= 0.004, what="something to be charged")
    policy.write_text(POLICY + BUDGET % "0.2")
    expect(panel).to_contain_text(re.compile(r"of the budget 'course' are used, more than 1 %"))
    picture(lab, "act-budget-warned")
    expect(lab.locator(".jp-gpu-item")).to_contain_text("GPU 1/2")

    policy.write_text(POLICY + BUDGET % "0.001")
    expect(panel).to_contain_text("are used: nothing starts or grows")
    expect(panel.get_by_text(re.compile("The budget 'course' of ann is used up")).first).to_be_visible()
    expect(lab.locator(".jp-gpu-item")).to_contain_text("GPU 1/8")
    expect(panel.get_by_role("radio", name=re.compile("whole card"))).to_be_disabled()
    picture(lab, "act-budget-shrunk")
    detail = opened(admin, f"#session={session_of(hub, 'ann')['id']}")
    expect(admin.locator(".gpa-session", has_text="ann")).to_contain_text("GPU 1/8")
    expect(detail).to_contain_text("are used: nothing starts or grows")
    picture(admin, "act-budget-admin", "dark")

    form = lab.context.new_page()
    form.goto(f"{hub.url}/hub/spawn/ann/second")
    expect(form.get_by_role("radio", name="1/8 of a card")).to_be_disabled()
    expect(form.locator("#gpu-form")).to_contain_text("The budget 'course' of ann is used up")
    form.screenshot(path=ROOT / "test-output/images/act-budget-form.png", full_page=True)
    form.close()
    policy.write_text(POLICY)
    expect(panel).not_to_contain_text("nothing starts or grows")


def test_a_session_is_parked_and_let_back_on_the_page(
    lab: Page, admin: Page, hub: Stack, accessible: Callable[[Page], None]
) -> None:
    session = session_of(hub, "ann")
    detail = opened(admin, f"#session={session['id']}")
    detail.get_by_role("button", name="Move…").click()
    expect(detail.get_by_role("radio", name=re.compile("It runs here"))).to_be_disabled()
    accessible(admin)
    picture(admin, "act-move", "dark")
    detail.get_by_role("button", name="Leave it").click()
    detail.get_by_role("button", name="Park…").press("Enter")
    detail.get_by_role("radio", name="in 12 hours, if there is room").check()
    detail.get_by_label("Reason").fill("the card is looked at")
    accessible(admin)
    picture(admin, "act-park", "dark")
    detail.get_by_label("Reason").press("Enter")
    expect(admin.get_by_text(re.compile("^ann is asked to save until .*, and is stopped once"))).to_be_visible()
    # the kernel of the tour knows nothing of the runtime, so that it cannot be saved
    expect(detail).to_contain_text(re.compile(r"Asked to save .*, it could not \(.*\), and runs on\."))
    picture(admin, "act-not-parked", "dark")
    assert session_of(hub, "ann")["id"] == session["id"]

    lab.evaluate("window.jupyterapp.serviceManager.sessions.shutdownAll()")
    detail.get_by_role("button", name="Park…").press("Enter")
    detail.get_by_role("radio", name="in 12 hours, if there is room").check()
    detail.get_by_label("Reason").fill("the card is looked at")
    detail.get_by_label("Reason").press("Enter")
    admin.get_by_role("link", name="Queue", exact=True).click()
    line = admin.get_by_role("region", name="Who waits").locator("tbody tr")
    expect(line).to_contain_text(re.compile(r"ann.*parked.*Parked by admin until .*: the card is looked at\."))
    line.get_by_role("button", name="ann").click()
    accessible(admin)
    picture(admin, "act-parked", "dark")
    assert hub_sessions(hub, "ann") == []
    detail.get_by_role("button", name="Let it back…").click()
    detail.get_by_label("Reason").fill("it is well")
    detail.get_by_role("button", name="Let it back", exact=True).click()
    expect(admin.get_by_text("ann comes back as soon as there is room.")).to_be_visible()
    until(lambda: [each["state"] for each in hub_sessions(hub, "ann")] == ["running"], 90, "the server to come back")
    assert session_of(hub, "ann")["id"] != session["id"]


def hub_sessions(hub: Stack, user: str) -> list[dict[str, Any]]:
    with hub.service() as service:
        return list(service.get("/sessions", params={"user": user}).json()["sessions"])


TRAINING = """
import pathlib, time
import numpy as np
from cuda.bindings import driver as cu
cu.cuInit(0)
_, context = cu.cuDevicePrimaryCtxRetain(cu.cuDeviceGet(0)[1])
cu.cuCtxSetCurrent(context)

def train(go_on):
    "A regression by gradient descent; its weights live on the card between two steps. The loss every ten steps."
    chance = np.random.default_rng(0)
    wanted, weights = chance.normal(size=1024), np.zeros(1024)
    error, held = cu.cuMemAlloc(weights.nbytes)
    assert error == 0
    assert cu.cuMemcpyHtoD(held, weights.ctypes.data, weights.nbytes)[0] == 0
    curve = []
    while go_on(len(curve)):
        for _ in range(10):
            assert cu.cuMemcpyDtoH(weights.ctypes.data, held, weights.nbytes)[0] == 0
            x = chance.normal(size=(32, 1024))
            off = x @ (weights - wanted)
            weights -= 5e-3 * (x.T @ off) / 32
            assert cu.cuMemcpyHtoD(held, weights.ctypes.data, weights.nbytes)[0] == 0
        curve.append(f"{np.mean(off ** 2):.17g}")
    cu.cuMemFree(held)
    return curve
"""
DISTURBED = """
def until_told(done):
    time.sleep(0.1)
    pathlib.Path("steps").write_text(str(done))
    return not pathlib.Path("enough").exists()
curve = train(until_told)
print("\\n".join(curve))
"""
UNDISTURBED = 'print("\\n".join(train(lambda done: done < len(curve))))'


def notebook(*cells: str) -> str:
    made = [
        {"cell_type": "code", "id": str(n), "metadata": {}, "execution_count": None, "outputs": [], "source": source}
        for n, source in enumerate(cells)
    ]
    spec = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}
    return json.dumps({"cells": made, "metadata": spec, "nbformat": 4, "nbformat_minor": 5})


def test_a_training_gives_way_grows_back_and_computes_the_same(chromium: Browser, admin: Page, hub: Stack) -> None:
    page = window(chromium)
    with hub.service() as service:
        for each in hub_sessions(hub, "ann"):
            service.delete(f"/sessions/{each['id']}")
        start_lab(page, hub, "tom", "1")
        other = service.post("/sessions", json={"user": "olga", "share": "1"}).json()["session"]["id"]
        put(hub, "tom", "training.ipynb", notebook(TRAINING, DISTURBED, UNDISTURBED))
        page.evaluate("window.jupyterapp.commands.execute('docmanager:open', { path: 'training.ipynb' })")
        expect(page.get_by_role("contentinfo")).to_contain_text("training.ipynb")
        expect(page.get_by_role("contentinfo")).to_contain_text("Idle")
        page.locator(".jp-gpu-item").click()
        panel = page.locator("#gpuspawner-panel")
        page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
        home = hub.state / "users" / "tom"

        def steps() -> int:
            told = home / "steps"
            return int(told.read_text() or 0) if told.exists() else 0

        until(lambda: steps() > 5, 60, "the training to begin")
        urgent = window(chromium)
        urgent.goto(hub.url)
        urgent.get_by_label("Username").fill("ursa")
        urgent.get_by_label("Password").fill(hub.user_password)
        urgent.get_by_role("button", name="Sign in").click()
        urgent.get_by_role("radio", name="1/2 of a card").check()
        urgent.get_by_role("button", name="Start").click()
        status = page.locator(".jp-gpu-item")
        expect(status).to_contain_text("GPU 1/2")
        expect(panel).to_contain_text("Made smaller to 1/2 of the card because more urgent work needs the rest")
        opened(admin, "#tab=cards")
        expect(admin.locator(".gpa-card", has_text="tom 4/8")).to_contain_text("ursa 4/8")
        picture(admin, "act-urgent-admin", "dark")
        picture(page, "act-urgent-lab")
        before = steps()
        until(lambda: steps() > before + 5, 60, "the training to go on")
        urgent.context.close()
        with hub.browser("ursa") as client:
            client.get("/hub/home")
            headers = {"X-XSRFToken": client.xsrf("/hub/"), "Referer": f"{hub.url}/hub/home"}
            until(
                lambda: client.delete("/hub/api/users/ursa/server", headers=headers).status_code in (202, 204),
                60,
                "the urgent server to be stopped",
            )
        expect(status).not_to_contain_text("1/2")
        expect(panel).not_to_contain_text("Made smaller")
        assert session_of(hub, "tom")["share"] == "1"
        before = steps()
        until(lambda: steps() > before + 5, 60, "the training to go on")
        put(hub, "tom", "enough", "")
        outputs = page.locator(".jp-Notebook .jp-CodeCell .jp-OutputArea-output")
        expect(outputs).to_have_count(2)
        disturbed, whole = (outputs.nth(number).inner_text().split() for number in (0, 1))
        assert len(disturbed) > 15
        assert disturbed == whole, "the same numbers, to the last digit"
        assert float(whole[-1]) < float(whole[0]) / 2, "and it learns"
        service.delete(f"/sessions/{other}")
    page.context.close()
