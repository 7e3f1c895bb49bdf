"""The longest task on the main thread of the hub's page about cards while 100 of 8,000 sessions change each second.

By the browser's own count (PerformanceObserver, `longtask`), which knows tasks from 50 ms on. The page is scrolled, a
list is searched, and a card is open beside it meanwhile. What is shorter is measured by the time between two messages
that the page sends itself.
"""

from __future__ import annotations

from tests.bench.page import CHANGING, NODES, SESSIONS, WATCH, load, open_page

SECONDS = 30
_GAPS = """seconds => new Promise(resolve => {
    const channel = new MessageChannel();
    const end = performance.now() + 1000 * seconds;
    let last = performance.now(), worst = 0;
    channel.port1.onmessage = () => {
        const now = performance.now();
        worst = Math.max(worst, now - last);
        last = now;
        if (now < end) { channel.port2.postMessage(0); } else { resolve(worst); }
    };
    channel.port2.postMessage(0);
})"""
_SCROLL = """() => {
    const box = document.querySelector('.gpa-scroll');
    window.scrolling = setInterval(() => { box.scrollTop = (box.scrollTop + 1777) % box.scrollHeight; }, 250);
}"""


def run() -> tuple[float, str]:
    """The worst in milliseconds."""
    with open_page() as (page, url):
        page.add_init_script(WATCH)
        load(page, url)
        page.locator(".gpa-card").first.click()
        page.evaluate(_SCROLL)
        page.wait_for_timeout(3000)  # the load is not what is measured
        loading = page.evaluate("window.longest")
        page.evaluate("window.longest = 0")
        worst = page.evaluate(_GAPS, SECONDS)
        longest = page.evaluate("window.longest")
    print(
        f"{NODES} nodes, {SESSIONS} sessions, {CHANGING} changes a second, {SECONDS} s of scrolling: longest task "
        f"{f'{longest:.0f} ms' if longest else 'under 50 ms'}, longest time between two messages {worst:.1f} ms; "
        f"while loading {f'{loading:.0f} ms' if loading else 'under 50 ms'}"
    )
    return float(worst), "ms"
