"""First paint of the spawn form in Chromium, with 1,000 cards to choose among.

The hub is the real one. Its spawner asks the real service's code, over a fleet of 1,000 cards that are only described,
more than the simulation has. The baseline, in the same run and browser, is the form page of a plain JupyterHub.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import uvicorn
from jupyterhub.services.auth import HubAuth
from playwright.sync_api import Browser, Page, sync_playwright

from gpuspawner.card import Card
from gpuspawner.fleet.base import CardState, Fleet, FleetChange, Grant
from gpuspawner.service.app import create_app
from gpuspawner.service.auth import Authenticator
from gpuspawner.service.database import open_database
from gpuspawner.service.sessions import SessionService
from gpuspawner.service.store import Store
from gpuspawner.service.tariff import Tariff
from tests.support.common import until
from tests.support.stack import Stack, stack

CARDS = 1000
ROUNDS = 9
ROOT = Path(__file__).parents[2]
_MODELS = (("NVIDIA H100 80GB HBM3 (simulated)", 85_520_809_984), ("NVIDIA A100-SXM4-40GB (simulated)", 42_949_672_960))

_OURS = f"""
load_subconfig({str(ROOT / "jupyterhub_config.py")!r})
c.LocalGPUSpawner.service_socket = "{{socket}}"
"""
_PLAIN = f"""
load_subconfig({str(ROOT / "jupyterhub_config.py")!r})
c.JupyterHub.spawner_class = "simple"
c.JupyterHub.template_paths = []
c.Spawner.options_form = '<label for="size">Size</label> <input id="size" name="size" value="small">'
"""


class Described:
    """A fleet of CARDS cards, some of them partly taken."""

    grade = "guarded"

    def energy_mj(self) -> dict[str, int]:
        return {}

    def __init__(self) -> None:
        self._states = []
        for index in range(CARDS):
            name, size = _MODELS[index % len(_MODELS)]
            self._states.append(CardState(Card(f"GPU-{index:036d}", index, name, size), index % 9))

    def cards(self, uuids: Collection[str] | None = None) -> list[CardState]:
        """Every card, or those of `uuids`."""
        return [state for state in self._states if uuids is None or state.card.uuid in uuids]

    def grants(self) -> list[Grant]:
        """None: nobody starts anything here."""
        return []

    def busy(self) -> dict[str, bool | None]:
        """Nobody works here."""
        return {}

    def watch(self) -> list[FleetChange]:
        """Nothing happens."""
        return []

    def close(self) -> None:
        """Nothing to let go of."""


@contextmanager
def _service(running: Stack, socket: Path, folder: Path) -> Iterator[None]:
    """The service's code over the described fleet, at `socket`."""
    token, tariff = running.secret("service_token"), Tariff()
    sessions = SessionService(cast(Fleet, Described()), Store(open_database(f"sqlite:///{folder / 'db'}"), tariff))
    app = create_app(sessions, Authenticator(HubAuth(api_token=token), token), tariff, "/services/gpuspawner/", True)
    server = uvicorn.Server(uvicorn.Config(app, uds=str(socket), log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started, 20, "the described service")
        yield
    finally:
        server.should_exit = True
        thread.join()


def _form(browser: Browser, running: Stack) -> Page:
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.goto(running.url)
    page.get_by_label("Username").fill("ann")
    page.get_by_label("Password").fill(running.user_password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/hub/spawn**")
    return page


def _first_paint(page: Page, running: Stack) -> float:
    """Milliseconds from the request to the first paint, by the browser's own clock."""
    page.goto(f"{running.url}/hub/spawn", wait_until="load")
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    painted: Any = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return float(painted)


def run() -> tuple[float, str]:
    """The median over ROUNDS of the form's first contentful paint, in milliseconds."""
    program = os.environ.get("GPUSPAWNER_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        folder = Path(name)
        folder.chmod(0o711)
        socket = folder / "s"
        (folder / "ours.py").write_text(_OURS.replace("{socket}", str(socket)))
        (folder / "plain.py").write_text(_PLAIN)
        hubs = [
            opened.enter_context(stack(folder / which, env={"GPUSPAWNER_HUB_CONFIG": str(folder / f"{which}.py")}))
            for which in ("ours", "plain")
        ]
        opened.enter_context(_service(hubs[0], socket, folder))
        browser = opened.enter_context(sync_playwright()).chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        pages = [_form(browser, running) for running in hubs]
        assert pages[0].locator("#gpu-card option").count() == CARDS + 1
        pairs = []
        for round_ in range(ROUNDS + 1):  # the first fills caches
            order = (0, 1) if round_ % 2 else (1, 0)
            taken = {which: _first_paint(pages[which], hubs[which]) for which in order}
            pairs.append((taken[0], taken[1]))
        browser.close()
    ours, plain = (statistics.median(values) for values in zip(*pairs[1:], strict=True))
    print(
        f"first contentful paint, median of {ROUNDS}: {ours:.0f} ms with {CARDS} cards, {plain:.0f} ms of a plain form"
    )
    return ours, "ms"
