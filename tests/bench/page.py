"""The hub's page about cards over 1,000 nodes and 8,000 sessions, for `panel-paint` and `panel-long-task`.

The page, its stream and the service behind them are the real ones, in a process of their own. The fleet is only
described, more than the simulation has; who asks is known without a hub.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import uvicorn
from playwright.sync_api import Page, sync_playwright
from sqlalchemy import insert

from gpuspawner.errors import Unavailable
from gpuspawner.fleet.base import CardReadings, Fleet, Grant
from gpuspawner.service.app import create_app
from gpuspawner.service.auth import Authenticator
from gpuspawner.service.database import open_database
from gpuspawner.service.panel.signin import COOKIE, PageSignIn
from gpuspawner.service.sessions import SessionService
from gpuspawner.service.store import Store
from gpuspawner.service.tables import SessionRow
from gpuspawner.service.tariff import Tariff
from gpuspawner.share import GPUShare
from tests.support.common import free_ports, until
from tests.support.memory_fleet import MemoryFleet, Tokens

NODES, CARDS, SESSIONS = 1000, 8, 8000
#: So many sessions change each second.
CHANGING = 100
#: Eighths that they hold.
SIZES = (1, 2, 4)
PREFIX = "/services/gpuspawner/"
_CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


class Busy(MemoryFleet):
    """The described fleet: one session on each card; each second some of them hold more memory or another share."""

    def __init__(self) -> None:
        super().__init__(NODES, CARDS)
        self.used: dict[str, int] = {}
        self._dice = random.Random(1)
        self._next = time.monotonic()
        for number, (uuid, state) in enumerate(self.states.items()):
            self.now[uuid] = CardReadings(number << 20, number % 101, 30 + number % 50, 70.0 + number % 600)
            self.held[f"s-{number:012x}"] = Grant(f"s-{number:012x}", (state.card,), SIZES[number % 3])
        for uuid, grant in zip(self.states, self.held.values(), strict=True):
            self.states[uuid] = replace(self.states[uuid], free_eighths=8 - grant.eighths_per_card)

    def grants(self) -> list[Grant]:
        if time.monotonic() >= self._next:
            self._next += 1
            for session in self._dice.sample(list(self.held), CHANGING):
                grant = self.held[session]
                self.held[session] = replace(grant, eighths_per_card=self._dice.choice(SIZES))
                self.used[session] = self._dice.randrange(10 << 30)
        return list(self.held.values())

    def used_bytes(self, session: str) -> int | None:
        return self.used.get(session)

    def alive(self, session: str) -> bool:
        return True


class Follows:
    """A service that only shows: the ledger is not what is measured."""

    leads = False

    def refresh(self) -> bool:
        return False


def _serve(port: int, folder: str) -> None:
    fleet, tariff = Busy(), Tariff()
    engine = open_database(f"sqlite:///{folder}/db")
    store = Store(engine, tariff)
    rows = [
        {"id": session, "user": f"user{number}", "server": "", "state": "running", "model": "H100-80GB"}
        | {"share": GPUShare(grant.eighths_per_card).amount}
        | {"cards": f'["{grant.cards[0].uuid}"]', "created_ms": 1_700_000_000_000 + number, "burst": False}
        for number, (session, grant) in enumerate(fleet.held.items())
    ]
    with engine.begin() as connection:
        connection.execute(insert(SessionRow), rows)
    service = SessionService(cast(Fleet, fleet), store, leadership=Follows())
    sign_in = PageSignIn("secret", PREFIX, "http://127.0.0.1:9/hub/api")
    app = create_app(service, cast(Authenticator, Tokens()), tariff, PREFIX, sign_in=sign_in)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


@contextmanager
def open_page() -> Iterator[tuple[Page, str]]:
    """A page of Chromium that is signed in, and the page's address."""
    program = os.environ.get("GPUSPAWNER_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise Unavailable("It needs Chromium: install it, or name one in GPUSPAWNER_TEST_CHROMIUM.")
    port = free_ports(1)
    url = f"http://127.0.0.1:{port}{PREFIX}"
    cookie = PageSignIn("secret", PREFIX, "")._set(COOKIE, "admin", 3600, False).partition(";")[0].partition("=")[2]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        service = multiprocessing.get_context("spawn").Process(target=_serve, args=(port, folder))
        service.start()
        browser = play.chromium.launch(executable_path=program, args=_CHROMIUM)
        try:
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            context.set_default_timeout(120_000)
            context.add_cookies([{"name": COOKIE, "value": cookie, "url": url}])
            page = context.new_page()
            until(lambda: _answers(page, url), 120, "the service over the described fleet")
            yield page, url
        finally:
            browser.close()
            service.terminate()
            service.join()


def _answers(page: Page, url: str) -> bool:
    try:
        return bool(page.context.request.get(f"{url}api/v1/health").ok)
    except Exception:
        return False


def load(page: Page, url: str) -> dict[str, Any]:
    """Load the page; milliseconds from the request to the first card drawn, and to all cards known."""
    page.goto("about:blank")
    page.goto(url)
    # not wait_for_function, which the page's Content-Security-Policy forbids
    until(lambda: page.evaluate("window.firstCard > 0 && window.allCards > 0"), 120, "all cards to be there")
    return {"first": page.evaluate("window.firstCard"), "all": page.evaluate("window.allCards")}


#: Notes when the first card was on the screen (the second frame after it was there) and when all were known.
WATCH = f"""
window.longest = 0;
new PerformanceObserver(list => {{
    for (const each of list.getEntries()) {{ window.longest = Math.max(window.longest, each.duration); }}
}}).observe({{ type: 'longtask', buffered: true }});
const seen = new MutationObserver(() => {{
    if (!window.firstCard && document.querySelector('.gpa-card')) {{
        window.firstCard = -1;
        requestAnimationFrame(() => requestAnimationFrame(() => {{ window.firstCard = performance.now(); }}));
    }}
    const sum = document.querySelector('.gpa-sum');
    if (!window.allCards && sum && sum.textContent.startsWith('{NODES * CARDS:,} cards, {SESSIONS:,} sessions')) {{
        window.allCards = performance.now();
    }}
}});
seen.observe(document, {{ subtree: true, childList: true, characterData: true }});
"""
