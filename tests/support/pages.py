"""What people do on the hub's pages, for tests in a browser."""

from __future__ import annotations

import os
import re
from pathlib import Path

from playwright.sync_api import Page, expect

from .common import until
from .stack import Stack


def sign_in(page: Page, hub: Stack, user: str) -> None:
    """Sign in by the login form."""
    page.goto(hub.url)
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(hub.user_password)
    page.get_by_role("button", name="Sign in").click()


def start_lab(page: Page, hub: Stack, user: str, share: str, **options: str) -> None:
    """A server with this share (and further `options`), started by its user, and its JupyterLab with the tour open."""
    with hub.browser(user) as client:
        client.get("/hub/home")
        answer = client.post(
            f"/hub/api/users/{user}/server",
            json={"share": share, **options},
            headers={"X-XSRFToken": client.xsrf("/hub/"), "Referer": f"{hub.url}/hub/home"},
        )
        assert answer.status_code in (201, 202), answer.text

        def ready() -> bool:
            servers = client.get(f"/hub/api/users/{user}").json()["servers"]
            return bool(servers and servers[""]["ready"])

        until(ready, 90, "the server to be ready")
    # Tests ask JupyterLab by its own application object, which pages have only if told so.
    put(hub, user, ".jupyter/labconfig/page_config.json", '{"exposeAppInBrowser": true}')
    # JupyterLab's question about its news would lie over what is tested.
    settings = ".jupyter/lab/user-settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    put(hub, user, settings, '{"fetchNews": "false"}')
    sign_in(page, hub, user)
    page.wait_for_url(re.compile(rf"/user/{user}/"), timeout=90_000)
    page.goto(f"{hub.url}/user/{user}/lab/tree/tour.ipynb")
    page.wait_for_url(re.compile(rf"/user/{user}/lab"), timeout=90_000)
    expect(page.locator(".jp-gpu-item")).to_be_visible(timeout=90_000)
    # JupyterLab opens the notebook of its address last: before that, it would come to the front over another one.
    expect(page.get_by_role("contentinfo")).to_contain_text("tour.ipynb", timeout=90_000)


def put(hub: Stack, user: str, name: str, content: str | bytes, mode: int = 0o644) -> Path:
    """Write a file into a user's home as the user would: whole, and theirs."""
    home = hub.state / "users" / user
    path = home / name
    missing = [folder for folder in (path.parent, *path.parents) if home in folder.parents and not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    partial.chmod(mode)
    if os.geteuid() == 0:
        owner = home.stat()
        for made in (*missing, partial):
            os.chown(made, owner.st_uid, owner.st_gid)
    partial.rename(path)
    return path


def run_in_kernel(page: Page, code: str) -> None:
    """Run code in the kernel of the notebook that is open, and wait until it is done."""
    page.evaluate(
        """async code => {
            const shell = window.jupyterapp.shell;
            const context = shell.currentWidget.context.sessionContext;
            await context.ready;
            const done = await context.session.kernel.requestExecute({ code }).done;
            if (done.content.status !== 'ok') throw new Error(JSON.stringify(done.content));
        }""",
        code,
    )
