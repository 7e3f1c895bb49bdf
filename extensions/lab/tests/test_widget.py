"""GPUShare(): in this process, in a kernel run without a page, and in Voila in a real Chromium."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import lab_nvml
import nbformat
import pytest
from conftest import stop, wait_for
from gpuspawner_lab import GPUShare, on_shrink, shrink
from gpuspawner_lab.nvml import NVMLReader
from gpuspawner_lab.widget import widget as module
from gpuspawner_lab.widget.figures import Source
from gpuspawner_lab.widget.pulse import Pulse
from lab_service import TOKEN, Service
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Page, expect, sync_playwright

GIB = 2**30
HERE = Path(__file__).parent
SCRIPTED = "import gpuspawner_lab.widget.widget as w, lab_nvml; w._source._reader = lab_nvml.ScriptedReader()"


@pytest.fixture
def session(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setenv("GPUSPAWNER_SERVICE_URL", service.url)  # type: ignore[attr-defined]
    monkeypatch.setenv("GPUSPAWNER_SESSION", "s1")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", TOKEN)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    return service


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No hub, no service."""
    for name in ("GPUSPAWNER_SERVICE_URL", "GPUSPAWNER_SESSION", "JUPYTERHUB_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def pulse(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pulse]:
    """The widgets' own pulse, on one healthy card."""
    source = Source(NVMLReader(lab_nvml.FakeNVML(lab_nvml.card())))
    made = Pulse(source.sample, interval=0.05)
    monkeypatch.setattr(module, "_source", source)
    monkeypatch.setattr(module, "_pulse", made)
    yield made
    for widget in list(made._views):
        made.unwatch(widget)
    wait_for(lambda: not made.running, "the end of the sampler")


def samplers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gpuspawner-widget"]


# -- in this process


def test_figures_of_service_and_driver(session: Service, pulse: Pulse) -> None:
    share = GPUShare()
    assert share.available
    figures = share.figures
    assert figures["title"] == "GPU 1/4 of NVIDIA H100 80GB HBM3 (simulated)"
    assert (figures["memory_used_bytes"], figures["memory_allowed_bytes"]) == (3 * GIB, 20 * GIB)
    assert (figures["utilization_percent"], figures["power_watts"], figures["temperature_celsius"]) == (12, 71.2, 34)
    assert (figures["share"], figures["eighths"], figures["free_eighths"], figures["simulated"]) == ("1/4", 2, 4, True)
    assert [option["share"] for option in figures["options"]] == ["1/8", "1/4", "1/2", "1"]
    # A notebook is passed on: nothing in it says who made it or how to ask the service.
    assert "ada" not in str(share.get_state())
    assert TOKEN not in str(share.get_state())


def test_a_session_without_a_card_says_so(session: Service, pulse: Pulse) -> None:
    session.without_card = True  # and the driver shows one, which is somebody else's
    share = GPUShare()
    assert not share.available
    assert "runs without a card" in (share.reason or "")
    assert share.figures["title"] == "No card"
    assert (share.figures["memory_used_bytes"], share.figures["memory_allowed_bytes"]) == (None, None)
    assert (share.figures["resizable"], share.figures["options"]) == (False, [])
    assert "runs without a card" in repr(share)
    share.resize("1/2")
    assert share.result["ok"] is False
    assert "runs without a card" in share.result["message"]
    assert [method for method, *_ in session.requests if method != "GET"] == []


def test_unknown_is_none(session: Service, pulse: Pulse) -> None:
    unsupported = lab_nvml.NVMLError_NotSupported("no")
    module._source._reader = NVMLReader(lab_nvml.FakeNVML(lab_nvml.card(load=unsupported, milliwatts=unsupported)))
    figures = GPUShare().figures
    assert figures["utilization_percent"] is None
    assert figures["power_watts"] is None
    assert figures["temperature_celsius"] == 34


def test_one_sampler_for_all_and_none_when_all_are_closed(session: Service, pulse: Pulse) -> None:
    shares = [GPUShare() for _ in range(3)]
    assert len(samplers()) == 1
    for share in shares:
        share._told(share, {"do": "watch", "view": "page"}, [])
    before = [share.figures["at"] for share in shares]
    wait_for(lambda: all(s.figures["at"] > at for s, at in zip(shares, before, strict=True)), "news for every widget")
    shares[0].close()
    shares[1].close()
    assert pulse.running
    shares[2]._told(shares[2], {"do": "unwatch", "view": "page"}, [])
    wait_for(lambda: not samplers(), "the end of the sampler")
    last = shares[2].figures["at"]
    shares[2]._told(shares[2], {"do": "watch", "view": "page"}, [])
    wait_for(lambda: shares[2].figures["at"] > last, "figures after somebody looks again")


def test_a_view_that_falls_silent_is_forgotten_but_not_while_a_cell_runs() -> None:
    now = [0.0]
    pulse = Pulse(dict, interval=0.02, clock=lambda: now[0])

    class Shown:
        times = 0

        def refresh(self, figures: dict[str, Any]) -> None:
            self.times += 1

    shown = Shown()
    pulse.cell_begins()
    pulse.watch(shown, "page", 30)
    now[0] = 1000
    seen = shown.times
    pulse.nudge()
    wait_for(lambda: shown.times > seen, "figures during a long cell")
    pulse.cell_ends()
    assert pulse._watched()
    now[0] = 1029
    assert pulse._watched()
    now[0] = 1031
    pulse.nudge()
    wait_for(lambda: not pulse.running, "the end of the sampler")


def test_resize_says_what_changed_or_why_not(session: Service, pulse: Pulse) -> None:
    share = GPUShare()
    share._told(share, {"do": "resize", "share": "1/2"}, [])
    wait_for(lambda: share.result, "the answer")
    assert share.result["ok"]
    assert share.result["message"].startswith("GPU 1/4 → 1/2: memory 20.0 → 40.0 GiB in 3.2 ms")
    wait_for(lambda: share.figures["share"] == "1/2" and not share.asked, "the new share")
    session.used = 15 * GIB
    freed = []

    @on_shrink
    def free() -> None:
        freed.append(1)

    try:
        share._told(share, {"do": "resize", "share": "1/8"}, [])
        wait_for(lambda: not share.result["ok"], "the refusal")
    finally:
        shrink.forget(free)
    assert freed == [1]
    assert share.result["message"] == "Free 5.0 GiB first. Nothing was changed."
    assert session.share == "1/2"


@pytest.mark.parametrize("share", ["1/3", 1, None, True, ["1/2"], "1" * 10_000_000, {}])
def test_a_share_that_is_none_is_refused_and_never_asked(session: Service, pulse: Pulse, share: object) -> None:
    made = GPUShare()
    made._told(made, {"do": "resize", "share": share}, [])
    assert not made.result["ok"]
    assert "is not a share: give 1/8, 1/4, 1/2 or 1." in made.result["message"]
    assert len(made.result["message"]) < 200
    assert "PATCH" not in [method for method, _, _ in session.requests]


@pytest.mark.parametrize(
    "message", [None, "resize", {}, {"do": "watch"}, {"do": "watch", "view": "x" * 1000}, {"do": [], "view": {}}]
)
def test_messages_of_another_kind_are_ignored(session: Service, pulse: Pulse, message: object) -> None:
    made = GPUShare()
    made._told(made, message, [])
    assert made.result == {}
    assert pulse._views[made].keys() == {"new"}


def test_many_views_are_not_remembered_for_ever(session: Service, pulse: Pulse) -> None:
    made = GPUShare()
    for number in range(1000):
        made._told(made, {"do": "watch", "view": f"v{number}"}, [])
    assert len(pulse._views[made]) == 32


def test_settings_that_do_not_exist_are_named(nowhere: None) -> None:
    with pytest.raises(TypeError, match="takes no settings, not \\['share'\\]"):
        GPUShare(share="1/2")


# -- without a page


def execute(*cells: str, store: bool = True) -> nbformat.NotebookNode:
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3", store_widget_state=store).execute()
    return notebook


def saved(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """The figures that a notebook was saved with."""
    states = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
    (figures,) = [each["state"]["figures"] for each in states if "figures" in each["state"]]
    return dict(figures)


def test_a_notebook_run_without_hub_and_card_has_no_error_and_says_why(nowhere: None) -> None:
    notebook = execute("from gpuspawner_lab import GPUShare; GPUShare()")
    (output,) = notebook.cells[0].outputs
    assert output.data["text/plain"].startswith("GPUShare(available: false, reason: No NVIDIA driver can be read")
    assert "without a GPU share" in output.data["text/html"]
    figures = saved(notebook)
    assert figures["available"] is False
    assert "No NVIDIA driver" in figures["reason"]
    assert figures["memory_used_bytes"] is None


def test_a_notebook_is_saved_with_its_last_figures(session: Service) -> None:
    notebook = execute(
        SCRIPTED,
        "from gpuspawner_lab import GPUShare\nfirst = GPUShare()\nfirst",
        "import threading\nfirst\n",
        "sum(t.name == 'gpuspawner-widget' for t in threading.enumerate())",
    )
    assert "3.0 of 20.0 GiB used at 20" in notebook.cells[1].outputs[0].data["text/plain"]
    assert notebook.cells[3].outputs[0].data["text/plain"] == "1"
    assert saved(notebook)["memory_used_bytes"] == 3 * GIB


def test_a_silent_service_does_not_hold_up_cells(session: Service) -> None:
    session.gate.clear()
    try:
        notebook = execute("from gpuspawner_lab import GPUShare; GPUShare()", "'the next cell'")
    finally:
        session.gate.set()
    assert notebook.cells[1].outputs[0].data["text/plain"] == "'the next cell'"
    assert "available: false" in notebook.cells[0].outputs[0].data["text/plain"]


def test_plain_python_prints_the_reason_and_ends(nowhere: None) -> None:
    code = "from gpuspawner_lab import GPUShare; share = GPUShare(); print(share); print(share.available, share.reason)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("GPUShare(available: false, reason: ")
    assert second.startswith("False No NVIDIA driver")
    assert done.stderr == ""


# -- in a page


@pytest.fixture
def page() -> Iterator[Page]:
    program = os.environ.get("GPUSPAWNER_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        assert "CI" not in os.environ
        pytest.skip("no Chromium here: install Debian's package chromium, or name one in GPUSPAWNER_TEST_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        made = browser.new_page()
        made.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        yield made
        browser.close()


def voila(folder: Path, *cells: str) -> tuple[subprocess.Popen[bytes], str]:
    """Voila on a notebook of these cells; its process and address."""
    nbformat.write(new_notebook(cells=[new_code_cell(cell) for cell in cells]), folder / "share.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "voila", "share.ipynb", "--no-browser", f"--port={port}", "--Voila.ip=127.0.0.1"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "voila.log").open("wb"),
        env={**os.environ, "JUPYTER_RUNTIME_DIR": str(folder / "runtime"), "HOME": str(folder)},
    )
    url = f"http://127.0.0.1:{port}/"

    def answers() -> bool:
        assert process.poll() is None, (folder / "voila.log").read_text()
        try:
            return httpx.get(url + "voila/static/", timeout=5).status_code < 500
        except httpx.TransportError:
            return False

    try:
        wait_for(answers, "the start of Voila", 60)
    except AssertionError:
        stop(process)
        raise
    return process, url


@pytest.mark.browser
def test_voila_shows_live_figures_and_resizes(session: Service, page: Page, tmp_path: Path) -> None:
    process, url = voila(tmp_path, SCRIPTED, "from gpuspawner_lab import GPUShare; GPUShare()", "GPUShare()")
    try:
        page.goto(url)
        first, second = page.get_by_label("GPU share").nth(0), page.get_by_label("GPU share").nth(1)
        for widget in (first, second):
            expect(widget).to_contain_text(re.compile(r"Live · \d"))
            expect(widget).to_contain_text("3.0 GiB of 20.0 GiB")
            expect(widget).to_contain_text("12 %")
        expect(first.get_by_role("img", name="The card in eighths")).to_have_attribute(
            "aria-label", "The card in eighths: yours 2/8, free 4/8, others 2/8"
        )
        expect(first.get_by_role("radio", name=re.compile("^whole"))).to_be_disabled()
        expect(first).to_contain_text("Others hold 2/8 of this card.")
        first.get_by_role("radio", name=re.compile(r"^1\/2")).check()
        expect(first).to_contain_text("1/4 → 1/2: 40.0 GiB, 1.60 EUR per hour")
        assert session.share == "1/4"  # nothing happens before the button
        first.get_by_role("button", name="Resize").click()
        expect(first.get_by_role("status")).to_contain_text("GPU 1/4 → 1/2")
        assert session.share == "1/2"
        expect(second.get_by_role("radio", name=re.compile(r"^1\/2"))).to_be_checked()
        session.used = 15 * GIB
        first.get_by_role("radio", name=re.compile(r"^1\/8")).check()
        first.get_by_role("button", name="Resize").click()
        expect(first.get_by_role("status")).to_have_text("Free 5.0 GiB first. Nothing was changed.")
        folder = HERE.parents[2] / "test-output/images"
        folder.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=folder / "widget-voila.png")
        # The kernel goes, the page stays: it says so and offers nothing.
        stop(process)
        expect(first).to_contain_text(re.compile(r"Not live\. Last figures from \d"))
        expect(first.get_by_role("radio", name=re.compile(r"^1\/8"))).to_be_disabled()
    finally:
        stop(process)
