"""GPUShare() in JupyterLab on the real stack: live while a cell runs, a resize, a notebook opened again later."""

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
from support.stack import Stack

from .test_the_act import sign_in

pytestmark = [pytest.mark.browser, pytest.mark.hub, pytest.mark.timeout(420)]

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


def run(page: Page, number: int) -> Locator:
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(number)
    cell.locator(".jp-InputArea-editor").click()
    page.keyboard.press("Control+Enter")
    return cell.locator(".jp-OutputArea")


def test_live_in_lab_and_honest_when_opened_again(page: Page, hub: Stack, pictures: Path) -> None:
    with Hub(hub).user("wilma") as user:
        user.start({"share": "1/8"})
        server = Server(user)
        server.write("share.ipynb", CELLS)
        server.keep_widget_state()
        sign_in(page, hub, "wilma")
        page.goto(server.base + "lab/tree/share.ipynb")
        expect(page.get_by_role("contentinfo")).to_contain_text("Python 3 (ipykernel) | Idle")

        widget = run(page, 0).get_by_label("GPU share")
        expect(widget).to_contain_text(re.compile(r"Live · \d"))
        expect(widget).to_contain_text("simulated")
        expect(widget).to_contain_text(re.compile(r"of 10\.0 GiB"))
        expect(widget).to_contain_text(re.compile(r"\d+ °C"))

        # While a cell runs the figures stay live; what is asked for waits for the kernel, and the widget says so.
        output = run(page, 1)
        foot = widget.locator(".gpushare-foot")
        shown = foot.inner_text()
        until(lambda: foot.inner_text() != shown and "Live" in foot.inner_text(), 30, "figures during a cell")
        widget.get_by_role("radio", name=re.compile(r"^1\/2")).check()
        expect(widget).to_contain_text(re.compile(r"1/8 → 1/2: 39\.8 GiB, \d+\.\d\d EUR per hour"))
        page.screenshot(path=pictures / "widget.png")
        widget.get_by_role("button", name="Resize").click()
        expect(widget).to_contain_text("Asked for 1/2")
        server.write_text("go")
        expect(output).to_contain_text("went True")
        expect(widget.get_by_role("status")).to_contain_text("GPU 1/8 → 1/2")
        expect(widget).to_contain_text(re.compile(r"Live · \d"))
        expect(widget).to_contain_text("yours 4/8")
        assert user.session()["share"] == "1/2"

        # The same widget in another cell shows the same.
        again = run(page, 2).get_by_label("GPU share")
        expect(again).to_contain_text(re.compile(r"Live · \d"))
        expect(again).to_contain_text("yours 4/8")

        page.keyboard.press("Control+s")
        state = "application/vnd.jupyter.widget-state+json"
        until(lambda: state in server.read("share.ipynb")["metadata"].get("widgets", {}), 30, "the saved widget state")
        server.end_kernels()
        page.evaluate("window.onbeforeunload = null")
        page.goto(server.base + "lab/tree/share.ipynb?reset")
        old = page.get_by_label("GPU share").first
        expect(old).to_contain_text(re.compile(r"Not live\. Last figures from \d"))
        expect(old).to_contain_text("yours 4/8")
        expect(old.get_by_role("radio", name=re.compile(r"^1\/8"))).to_be_disabled()
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=pictures / "widget-reopened.png")
