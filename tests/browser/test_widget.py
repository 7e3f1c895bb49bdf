"""GPUShare() in JupyterLab on the real stack: live and resized while a cell runs, a notebook opened again later."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect
from support.common import until
from support.hub import Hub, User
from support.pages import put, start_lab
from support.stack import Stack

from .test_panel import faults, theme
from .test_the_act import sign_in

pytestmark = [pytest.mark.browser, pytest.mark.hub, pytest.mark.timeout(420)]

ROOT = Path(__file__).parents[2]
CELLS = [
    "from gpuspawner_lab import GPUShare\nshare = GPUShare()\nshare",
    # A long cell, which ends when the test says so.
    "import time\nfrom pathlib import Path\nended = time.monotonic() + 120\n"
    "while not Path('go').exists() and time.monotonic() < ended:\n    time.sleep(0.05)\n"
    "print('went', Path('go').exists())",
    "share",
]


class Server:
    """A user's Jupyter server, spoken to by its own API."""

    def __init__(self, user: User) -> None:
        self.base = f"{user.hub.stack.url}/user/{user.name}/"
        self.client = httpx.Client(
            base_url=self.base, headers={"Authorization": f"token {user.hub.stack.token(user.name)}"}, timeout=60
        )

    def write(self, name: str, cells: list[str]) -> None:
        made = [
            {"id": f"c{n}", "cell_type": "code", "source": cell, "metadata": {}, "outputs": [], "execution_count": None}
            for n, cell in enumerate(cells)
        ]
        kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        content = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
        answer = self.client.put(f"api/contents/{name}", json={"type": "notebook", "content": content})
        assert answer.status_code == 201, answer.text

    def write_text(self, name: str) -> None:
        answer = self.client.put(f"api/contents/{name}", json={"type": "file", "format": "text", "content": ""})
        assert answer.status_code == 201, answer.text

    def read(self, name: str) -> dict[str, Any]:
        answer = self.client.get(f"api/contents/{name}", params={"content": 1})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["content"]
        return found

    def keep_widget_state(self) -> None:
        """As by the menu Settings > Save Widget State Automatically."""
        setting = {"raw": json.dumps({"saveState": True})}
        answer = self.client.put("lab/api/settings/@jupyter-widgets/jupyterlab-manager:plugin", json=setting)
        assert answer.status_code == 204, answer.text

    def end_kernels(self) -> None:
        for session in self.client.get("api/sessions").json():
            assert self.client.delete(f"api/sessions/{session['id']}").status_code == 204


def run(page: Page, number: int, within: Page | Locator | None = None) -> Locator:
    cell = (within or page).locator(".jp-Notebook .jp-CodeCell").nth(number)
    cell.locator(".jp-InputArea-editor").click()
    page.keyboard.press("Control+Enter")
    return cell.locator(".jp-OutputArea")


def is_saved(notebook: dict[str, Any]) -> bool:
    """Whether the notebook holds the state of every widget that its outputs show."""
    kept = notebook["metadata"].get("widgets", {}).get("application/vnd.jupyter.widget-state+json", {})
    outputs = [output for cell in notebook["cells"] for output in cell["outputs"]]
    views = [output.get("data", {}).get("application/vnd.jupyter.widget-view+json") for output in outputs]
    shown = {view["model_id"] for view in views if view}
    return bool(shown) and shown <= set(kept.get("state", {}))


def test_live_in_lab_and_honest_when_opened_again(page: Page, hub: Stack, pictures: Path) -> None:
    with Hub(hub).user("wilma") as user:
        user.start({"share": "1/8"})
        server = Server(user)
        server.write("share.ipynb", CELLS)
        server.keep_widget_state()
        put(hub, "wilma", ".jupyter/labconfig/page_config.json", '{"exposeAppInBrowser": true}')
        sign_in(page, hub, "wilma")
        page.goto(server.base + "lab/tree/share.ipynb")
        expect(page.get_by_role("contentinfo")).to_contain_text("Python 3 (ipykernel) | Idle")

        widget = run(page, 0).get_by_label("GPU share")
        expect(widget).to_contain_text(re.compile(r"Live · \d"))
        expect(widget).to_contain_text("simulated")
        expect(widget).to_contain_text(re.compile(r"of 10\.0 GiB"))
        expect(widget).to_contain_text(re.compile(r"\d+ °C"))

        # While a cell runs the figures stay live, and a resize is done.
        output = run(page, 1)
        foot = widget.locator(".gpushare-foot")
        shown = foot.inner_text()
        until(lambda: foot.inner_text() != shown and "Live" in foot.inner_text(), 30, "figures during a cell")
        widget.get_by_role("radio", name=re.compile(r"^1\/2")).check()
        expect(widget).to_contain_text(re.compile(r"1/8 → 1/2: 39\.8 GiB, \d+\.\d\d EUR per hour"))
        page.mouse.move(0, 0)
        page.screenshot(path=pictures / "widget.png")
        theme(page, "JupyterLab Dark")
        page.screenshot(path=ROOT / "test-output" / "widget-dark.png")
        theme(page, "JupyterLab Light")
        widget.get_by_role("button", name="Resize").click()
        status = widget.get_by_role("status")
        expect(status).to_have_text(re.compile(r"^GPU 1/8 → 1/2: 39\.8 GiB in \d+\.\d ms, \d+\.\d\d EUR per hour\.$"))
        expect(widget).to_contain_text("yours 4/8")
        expect(widget.get_by_role("radio", name=re.compile(r"^1\/2"))).to_be_checked()
        assert user.session()["share"] == "1/2"
        expect(page.locator(".jp-gpu-item")).to_contain_text("1/2")
        # A page whose server does not know of it leaves it to the kernel, which is busy; and says so.
        page.route("**/gpuspawner/api/share", lambda route: route.fulfill(status=404, body="no such page"))
        widget.get_by_role("radio", name=re.compile(r"^1\/4")).check()
        widget.get_by_role("button", name="Resize").click()
        expect(widget).to_contain_text("Asked for 1/4; the kernel answers when it is not busy.")
        expect(output).not_to_contain_text("went")
        server.write_text("go")
        expect(output).to_contain_text("went True")
        expect(status).to_contain_text("GPU 1/2 → 1/4")
        page.unroute("**/gpuspawner/api/share")
        expect(widget).to_contain_text(re.compile(r"Live · \d"))
        expect(widget).to_contain_text("yours 2/8")
        assert user.session()["share"] == "1/4"

        # The same widget in another cell shows the same.
        again = run(page, 2).get_by_label("GPU share")
        expect(again).to_contain_text(re.compile(r"Live · \d"))
        expect(again).to_contain_text("yours 2/8")

        page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        until(lambda: is_saved(server.read("share.ipynb")), 30, "the saved widget state")
        server.end_kernels()
        page.evaluate("window.onbeforeunload = null")
        page.goto(server.base + "lab/tree/share.ipynb?reset")
        old = page.locator(".jp-Notebook").get_by_label("GPU share").first  # and not the panel
        expect(old).to_contain_text(re.compile(r"Not live\. Last figures from \d"))
        expect(old).to_contain_text("yours 2/8")
        expect(old.get_by_role("radio", name=re.compile(r"^1\/8"))).to_be_disabled()
        page.screenshot(path=ROOT / "test-output" / "widget-reopened.png")


def test_a_session_without_a_card_says_so_and_offers_no_resize(page: Page, hub: Stack) -> None:
    start_lab(page, hub, "nora", "none")
    item = page.locator(".jp-gpu-item")
    expect(item).to_have_text("No card")
    item.click()
    panel = page.locator("#gpuspawner-panel")
    expect(panel).to_contain_text("runs without a card")
    expect(panel.locator("form, input, meter")).to_have_count(0)
    assert page.evaluate("() => window.jupyterapp.commands.isEnabled('gpuspawner:resize')") is False
    with Hub(hub).user("nora") as user:
        server = Server(user)
        server.write("cpu.ipynb", ["%gpu", "%gpu resize 1/2", "from gpuspawner_lab import GPUShare\nGPUShare()"])
        page.evaluate("() => window.jupyterapp.commands.execute('docmanager:open', { path: 'cpu.ipynb' })")
        expect(page.get_by_role("contentinfo")).to_contain_text("cpu.ipynb")
        expect(page.get_by_role("contentinfo")).to_contain_text("Python 3 (ipykernel) | Idle")
        notebook = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        for number in range(2):
            output = run(page, number, notebook)
            expect(output).to_contain_text("runs without a card")
            expect(output).not_to_contain_text("GiB")
        widget = run(page, 2, notebook).get_by_label("GPU share")
        expect(widget).to_contain_text("No card")
        expect(widget).to_contain_text("runs without a card")
        expect(widget).not_to_contain_text("limits")
        expect(widget.locator("form")).to_be_hidden()
        expect(widget.locator("dl")).to_be_hidden()
        assert user.session()["share"] == "none"
        for name in ("Light", "Dark"):
            theme(page, f"JupyterLab {name}")
            assert faults(page) == []
            page.screenshot(path=ROOT / "test-output" / f"no-card-{name.lower()}.png")
