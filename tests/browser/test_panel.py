"""The side panel, by keyboard and mouse, on everything that `make up` starts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, WebSocketRoute, expect
from support.common import until
from support.compute import compiled
from support.pages import put, run_in_kernel, start_lab
from support.stack import Stack, stack

pytestmark = [pytest.mark.browser, pytest.mark.hub, pytest.mark.timeout(420)]

ROOT = Path(__file__).parents[2]
AXE = ROOT / "extensions/lab/node_modules/axe-core/axe.min.js"
CUDA = """
from cuda.bindings import driver as _cu
_cu.cuInit(0)
_, _context = _cu.cuDevicePrimaryCtxRetain(_cu.cuDeviceGet(0)[1])
_cu.cuCtxSetCurrent(_context)
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole stack on two simulated cards on which launches take time."""
    with stack(tmp_path_factory.mktemp("hub"), env={"GPUSPAWNER_SIMULATED_TIMED": "yes"}) as made:
        yield made


@pytest.fixture(scope="module")
def lab(chromium: Browser, hub: Stack) -> Iterator[Page]:
    """JupyterLab of a user with an eighth of a card, its panel closed. The window is that of a 13-inch screen."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    page = context.new_page()
    try:
        start_lab(page, hub, "pia", "1/8")
        expect(page.get_by_role("contentinfo")).to_contain_text("Python 3 (ipykernel) | Idle")
        yield page
    finally:
        folder = ROOT / "test-output"
        folder.mkdir(exist_ok=True)
        page.screenshot(path=folder / "last-panel.png")
        context.close()


@pytest.fixture
def panel(lab: Page) -> Locator:
    """The panel, open."""
    found = lab.locator("#gpuspawner-panel")
    if not found.is_visible():
        lab.locator(".jp-gpu-item").click()
    expect(found).to_be_visible()
    return found


def pumped(page: Page, condition: Callable[[], object], what: str) -> None:
    """Wait for something that the page's events bring about; they only arrive while Playwright is called."""

    def met() -> object:
        page.wait_for_timeout(20)
        return condition()

    until(met, 120, what)  # a page's lease of telemetry lasts a minute


def theme(page: Page, name: str) -> None:
    page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", name)
    kind = "false" if "Dark" in name else "true"
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", kind)


def faults(page: Page) -> list[str]:
    """What axe-core calls serious or critical in the panel."""
    if not page.evaluate("() => 'axe' in window"):
        page.add_script_tag(content=AXE.read_text())
    found = page.evaluate("() => axe.run('#gpuspawner-panel')")
    assert found["passes"], "axe-core looked at nothing"
    return [
        f"{one['id']}: {one['help']} at {node['target']}: {node.get('failureSummary')}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def painted(panel: Locator) -> str:
    """What the chart of memory shows, as its pixels."""
    return str(panel.locator("canvas").first.evaluate("canvas => canvas.toDataURL()"))


def play_runtime(hub: Stack, pinned: bool, **changes: Any) -> Path:
    """Write a state file as the runtime will; the folder of its run."""
    now = datetime.now(UTC)
    saved = {"bytes": 400 << 20, "saved": (now - timedelta(minutes=2)).isoformat(), "pinned": False}
    state = {
        "format": 1,
        "run": "resnet",
        "title": "ResNet-50, small set",
        "status": "running",
        "next_due": (now + timedelta(minutes=8)).isoformat(),
        "checkpoints": [
            {**saved, "name": "step-800", "step": 800, "verified": False},
            {**saved, "name": "step-1200", "step": 1200, "verified": True, "pinned": pinned},
        ],
        **changes,
    }
    return put(hub, "pia", ".local/state/gpuspawner-runtime/runs/resnet/state.json", json.dumps(state)).parent


def test_resize_by_keyboard(lab: Page, panel: Locator, hub: Stack, pictures: Path) -> None:
    expect(panel.get_by_role("img", name=re.compile("1 of 8 eighths yours, 0 held by others, 7 free"))).to_be_visible()
    lab.evaluate("() => window.jupyterapp.commands.execute('gpuspawner:resize')")
    expect(panel.get_by_role("radio", name=re.compile("one eighth"))).to_be_focused()
    lab.keyboard.press("ArrowDown")
    lab.keyboard.press("ArrowDown")
    expect(panel.get_by_role("radio", name=re.compile("one half"))).to_be_checked()
    # Before anything is asked for: memory and price.
    expect(panel).to_contain_text("10.0 → 39.8 GiB")
    expect(panel).to_contain_text(re.compile(r"\d\.\d\d → \d\.\d\d EUR/h"))
    lab.keyboard.press("Enter")
    expect(panel.locator(".jp-gpu-result")).to_contain_text("Resized from 1/8 to 1/2")
    expect(panel).to_contain_text("of 39.8 GiB")
    expect(panel.get_by_role("img", name=re.compile("4 of 8 eighths yours"))).to_be_visible()
    expect(lab.locator(".jp-gpu-item")).to_contain_text("GPU 1/2")
    with hub.service() as service:
        (session,) = service.get("/sessions", params={"user": "pia"}).json()["sessions"]
    assert session["share"] == "1/2"


def test_kernels_on_the_card_show_as_its_utilisation(lab: Page, panel: Locator, hub: Stack, tmp_path: Path) -> None:
    put(hub, "pia", ".compute", compiled(tmp_path).read_bytes(), 0o755)
    value = panel.locator(".jp-gpu-reading", has_text="Utilisation").locator(".jp-gpu-value")
    expect(value).to_have_text("0 %")
    run_in_kernel(
        lab,
        "import subprocess\nload = subprocess.Popen(['./.compute', '1000', 'plain', '0'], stdout=subprocess.PIPE)\n"
        "assert load.stdout.readline() == b'ready\\n'",
    )
    expect(value).to_have_text(re.compile(r"^([3-9]\d|100) %$"))  # of a share of 1/2
    run_in_kernel(lab, "load.kill(); load.wait()")
    expect(value).to_have_text("0 %")


def test_the_memory_of_a_notebook_and_a_shrink_that_its_caches_allow(lab: Page, panel: Locator, pictures: Path) -> None:
    before = painted(panel)
    run_in_kernel(lab, CUDA + "_, _cache = _cu.cuMemAlloc(20 << 30)\n_, _data = _cu.cuMemAlloc(5 << 30)")
    row = panel.locator("li", has_text="tour.ipynb")
    expect(row).to_contain_text("25.1 GiB")
    until(lambda: painted(panel) != before, what="the chart to be drawn anew")

    # Too large for a quarter, and nothing frees it: refused with the reason, nothing changed.
    panel.get_by_role("radio", name=re.compile("one quarter")).check()
    expect(panel).to_contain_text(re.compile(r"5\.\d GiB must be freed first\. tour\.ipynb holds 25\.1 GiB"))
    panel.get_by_role("button", name="Resize to 1/4").click()
    expect(panel.locator(".jp-gpu-result[data-phase=refused]")).to_contain_text("Nothing was changed")
    expect(panel).to_contain_text("of 39.8 GiB")

    # With a cache that the notebook gives up when asked, even while a cell runs.
    run_in_kernel(
        lab,
        "import gpuspawner_lab, threading\nfreed = threading.Event()\n"
        "def give_up():\n"
        "    if not freed.is_set():\n"
        "        _cu.cuCtxSetCurrent(_context)\n"
        "        _cu.cuMemFree(_cache)\n"
        "        freed.set()\n"
        "gpuspawner_lab.on_shrink(give_up)",
    )
    busy = "window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel"
    lab.evaluate(f"() => {{ {busy}.requestExecute({{ code: 'freed.wait(60)' }}); }}")
    expect(row).to_contain_text("busy")
    panel.get_by_role("button", name="Resize to 1/4").click()
    expect(panel.locator(".jp-gpu-result[data-phase=done]")).to_contain_text("Resized from 1/2 to 1/4")
    expect(row).to_contain_text("5.1 GiB")


def test_a_kernel_is_restarted_from_the_panel_after_a_question(lab: Page, panel: Locator) -> None:
    row = panel.locator("li", has_text="tour.ipynb")
    expect(row).to_contain_text("5.1 GiB")
    button = row.get_by_role("button", name="Restart the kernel of tour.ipynb")
    button.click()
    dialog = lab.get_by_role("dialog")
    expect(dialog).to_contain_text("Its variables are lost")
    dialog.get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("5.1 GiB")
    button.click()
    dialog.get_by_role("button", name="Restart").click()
    expect(panel).to_contain_text("the kernel was restarted")
    expect(row).to_contain_text("none")
    expect(panel).to_contain_text("0.0 of 19.9 GiB")


def test_a_checkpoint_is_pinned_and_restored(lab: Page, panel: Locator, hub: Stack) -> None:
    expect(panel).to_contain_text("No run has saved a checkpoint here yet.")
    folder = play_runtime(hub, pinned=False)
    row = panel.locator("li", has_text="step-1200")
    expect(row).to_contain_text("✓ verified")
    expect(row).to_contain_text("step 1,200 · 400 MiB")
    expect(panel.locator("li", has_text="step-800")).to_contain_text("damaged")
    pin = row.get_by_role("button", name="Pin step-1200")
    pin.click()
    expect(row).to_contain_text("Asked to pin; waiting for the run.")
    (request,) = (folder / "requests").iterdir()
    assert json.loads(request.read_text())["action"] == "pin"
    request.unlink()
    play_runtime(hub, pinned=True)
    expect(pin).to_have_attribute("aria-pressed", "true")
    expect(row).not_to_contain_text("waiting")

    row.get_by_role("button", name="Restore step-1200").click()
    lab.get_by_role("dialog").get_by_role("button", name="Restore").click()
    request = until(lambda: next(iter((folder / "requests").iterdir()), None), what="the request")
    assert json.loads(request.read_text())["action"] == "restore"
    request.unlink()
    refused = {"id": request.stem, "outcome": "refused", "message": "The run has ended."}
    play_runtime(hub, pinned=True, answers=[refused])
    expect(panel).to_contain_text("The run has ended.")


@pytest.fixture(scope="module")
def full_panel(lab: Page, hub: Stack) -> Iterator[None]:
    """Something in every part of the panel: memory in use, a run, and another user on the same card."""
    play_runtime(hub, pinned=True)
    with hub.service() as service:
        (own,) = service.get("/sessions", params={"user": "pia"}).json()["sessions"]
        assert service.patch(f"/sessions/{own['id']}", json={"share": "1/4"}).status_code == 200
        run_in_kernel(lab, CUDA + "_error, _data = _cu.cuMemAlloc(12 << 30)\nassert _error == 0, _error")
        others = service.post("/sessions", json={"user": "other", "share": "1/4"}).json()["session"]["id"]
        yield
        service.delete(f"/sessions/{others}")


@pytest.mark.usefixtures("full_panel")
@pytest.mark.parametrize("name", ["light", "dark"])
def test_no_serious_fault_for_those_who_cannot_see(lab: Page, panel: Locator, pictures: Path, name: str) -> None:
    theme(lab, f"JupyterLab {name.capitalize()}")
    try:
        expect(panel.get_by_role("img", name=re.compile("2 held by others"))).to_be_visible()
        expect(panel.locator("li", has_text="tour.ipynb")).to_contain_text("12.1 GiB")
        panel.get_by_role("radio", name=re.compile("one half")).check()
        expect(panel).to_contain_text("19.9 → 39.8 GiB")
        lab.mouse.move(0, 0)  # what a pointer hovers over looks chosen in a picture
        panel.evaluate("node => node.scrollTo(0, 0)")
        assert faults(lab) == []
        lab.screenshot(path=pictures / f"panel-{name}.png")
        # All of it at once, for those who look at pictures.
        lab.set_viewport_size({"width": 1280, "height": 1500})
        panel.screenshot(path=ROOT / "test-output" / f"panel-whole-{name}.png")
    finally:
        lab.set_viewport_size({"width": 1280, "height": 800})
        theme(lab, "JupyterLab Light")


def test_nothing_is_cut_off_in_a_narrow_sidebar(lab: Page, panel: Locator) -> None:
    # As narrow as somebody may drag it, less the 15 pixels of a scrollbar, which this Chromium draws over the page and
    # most people's puts beside it. What is wider than the panel would need a horizontal scroll.
    assert panel.evaluate("node => getComputedStyle(node).minWidth") == "280px"
    before = panel.evaluate("node => node.getAttribute('style')")
    panel.evaluate("node => { node.style.minWidth = '0'; node.style.width = '265px'; }")
    try:
        wide = panel.evaluate(
            """node => [...node.querySelectorAll('*')]
                .filter(one => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX === 'visible'
                    && getComputedStyle(one).display !== 'inline')
                .map(one => one.className + ' ' + one.textContent)"""
        )
        assert wide == []
        sizes = panel.locator(".jp-gpu-choice-memory")
        heights = sizes.evaluate_all("all => all.map(one => one.offsetHeight)")
        assert len(heights) == 4
        assert max(heights) < 24, "a size that takes two lines"
        panel.screenshot(path=ROOT / "test-output" / "panel-narrow.png")
    finally:
        panel.evaluate("(node, style) => node.setAttribute('style', style ?? '')", before)


def test_a_hidden_tab_and_a_closed_panel_stop_what_they_need(lab: Page, panel: Locator) -> None:
    asked: list[dict[str, Any]] = []
    lab.on("request", lambda one: asked.append(one.post_data_json) if "gpuspawner/api/watch" in one.url else None)
    frames: list[str] = []

    def telemetry(socket: Any) -> None:
        socket.on("framereceived", lambda frame: frames.append(frame) if "telemetry" in str(frame) else None)

    lab.on("websocket", telemetry)
    lab.reload()
    expect(panel).to_be_visible()  # it was restored
    pumped(lab, lambda: len(frames) >= 2, "telemetry")
    pumped(lab, lambda: any(one["detail"] for one in asked), "the panel to ask")

    lab.locator(".jp-gpu-item").click()
    expect(panel).to_be_hidden()
    pumped(lab, lambda: asked[-1]["seconds"] > 0 and not asked[-1]["detail"], "the panel to be given up")

    hide = (
        "hidden => { Object.defineProperty(document, 'hidden', { configurable: true, value: hidden });"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    lab.evaluate(hide, True)
    pumped(lab, lambda: asked[-1]["seconds"] == 0, "the telemetry to be given up")
    # The server samples no more, once the lease of the page before the reload has ended too.
    status = f"{lab.url.partition('/lab')[0]}/gpuspawner/api/status"
    watched = (
        "async url => { const token = document.cookie.match(/_xsrf=([^;]*)/)[1];"
        " return (await (await fetch(url, { headers: { 'X-XSRFToken': token } })).json()).watched; }"
    )
    pumped(lab, lambda: lab.evaluate(watched, status) is False, "the end of sampling")
    count = len(frames)
    lab.evaluate(hide, False)
    pumped(lab, lambda: len(frames) > count, "telemetry after coming back")


def test_a_missing_server_is_said_and_comes_back(lab: Page) -> None:
    panel = lab.locator("#gpuspawner-panel")
    cut = False

    def pass_on(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        server.on_message(lambda message: None if cut else socket.send(message))

    def answer(route: Route) -> None:
        route.abort() if cut else route.continue_()

    lab.route_web_socket(re.compile("events/subscribe"), pass_on)
    lab.route(re.compile("gpuspawner/api/"), answer)
    lab.reload()
    lab.wait_for_function("() => window.jupyterapp && window.jupyterapp.restored.then(() => true)")
    lab.evaluate("() => window.jupyterapp.commands.execute('gpuspawner:show-status')")
    expect(panel).to_contain_text(re.compile(r"Memory\d+\.\d of"))
    cut = True
    expect(panel).to_contain_text("Your Jupyter server cannot be reached. Trying again…")
    expect(panel).to_contain_text("Memoryunknown of")
    expect(panel).to_contain_text("Utilisationunknown")
    cut = False
    expect(panel).not_to_contain_text("Trying again…")
    expect(panel).to_contain_text(re.compile(r"Memory\d+\.\d of"))


def test_a_kernel_that_has_ended_meanwhile_is_told_and_not_restarted(lab: Page, panel: Locator) -> None:
    """The last one with this kernel."""

    def ends_first(route: Route) -> None:
        gone = lab.request.delete(
            route.request.url.split("/restart")[0], headers={"X-XSRFToken": route.request.headers["x-xsrftoken"]}
        )
        assert gone.status == 204, gone.text()
        route.continue_()

    lab.route("**/api/kernels/*/restart*", ends_first)
    panel.get_by_role("button", name="Restart the kernel of tour.ipynb").click()
    lab.get_by_role("dialog").get_by_role("button", name="Restart").click()
    expect(panel).to_contain_text("This kernel has ended already, so nothing was restarted.")
    lab.unroute("**/api/kernels/*/restart*")
    expect(panel).to_contain_text("No kernel is running")
