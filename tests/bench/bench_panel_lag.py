"""From a change on the card to the panel in Chromium that shows it, on everything that `make up` starts.

The simulated card is given a temperature at a random moment. The page notes the clock, which it shares with this
program, in the second animation frame after the panel shows it: then it is on the screen.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from gpuspawner.simulation.control import Control
from tests.support.pages import start_lab
from tests.support.stack import stack

CHANGES = 60
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]

_WATCH = """() => {
    const panel = document.querySelector('#gpuspawner-panel');
    window.seen = {};
    new MutationObserver(() => {
        const shown = panel.textContent.match(/Temperature(\\d+) °C/);
        if (shown && !(shown[1] in window.seen)) {
            const value = shown[1];
            window.seen[value] = null;
            requestAnimationFrame(() => requestAnimationFrame(() => { window.seen[value] = Date.now(); }));
        }
    }).observe(panel, { subtree: true, childList: true, characterData: true });
}"""


def _measure(page: Page, socket: Path) -> list[float]:
    page.locator(".jp-gpu-item").click()
    page.locator("#gpuspawner-panel").wait_for()
    page.evaluate(_WATCH)
    taken = []
    dice = random.Random(1)
    with Control(socket) as card:
        for change in range(CHANGES):
            time.sleep(0.2 + dice.random())  # at any moment between two samples
            value = 30 + change
            changed = time.time()
            card.set(0, "temperature", value)
            seen = page.wait_for_function("value => window.seen[value]", arg=str(value), polling=50)
            taken.append(1000 * (seen.json_value() / 1000 - changed))
    return taken


def run() -> tuple[float, str]:
    """The 95th percentile in milliseconds."""
    program = os.environ.get("GPUSPAWNER_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise SystemExit("panel-lag needs Chromium: install it, or name one in GPUSPAWNER_TEST_CHROMIUM")
    with tempfile.TemporaryDirectory() as folder, stack(Path(folder), "1*h100-80gb") as hub, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        start_lab(page, hub, "ann", "1/8")
        taken = _measure(page, hub.state / "run" / "simulation.sock")
        browser.close()
    p95 = statistics.quantiles(taken, n=20)[18]
    print(
        f"from a change on the simulated card to the screen, {CHANGES} changes: "
        f"median {statistics.median(taken):.0f} ms, p95 {p95:.0f} ms, longest {max(taken):.0f} ms"
    )
    return p95, "ms"
