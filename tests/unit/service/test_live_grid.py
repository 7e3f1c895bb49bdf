"""The grid's live source against a web server that answers as it is told."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.common import until
from support.memory_fleet import House

from gpuspawner.errors import InvalidInput
from gpuspawner.service.ledger.live_grid import TOKEN_FILE, LiveGrid, Unusable, ask
from gpuspawner.service.policy.schema import GridSource
from gpuspawner.service.policy.source import parse


class Web:
    """A service on the web. `says`: status and body; `heard`: the headers that came with the questions."""

    def __init__(self) -> None:
        self.says: tuple[int, bytes] = (200, b"{}")
        self.heard: list[dict[str, str]] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.heard.append(dict(self.headers))
                status, body = web.says
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def source(self, value: str = "data.0.intensity.actual", **more: Any) -> GridSource:
        url = f"http://127.0.0.1:{self.server.server_address[1]}/now"
        return GridSource(url=url, value=value, source="a web", **more)

    def answers(self, figure: Any) -> None:
        self.says = (200, json.dumps({"data": [{"intensity": {"actual": figure}}]}).encode())


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_the_figure_and_the_secret(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web.answers(123.6)
    assert ask(web.source()) == 124
    assert "auth-token" not in web.heard[-1]
    (tmp_path / "secret").write_text("s3cret\n")
    monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "secret"))
    assert ask(web.source(token_header="auth-token")) == 124
    assert web.heard[-1]["auth-token"] == "s3cret"


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ((200, b"no json"), "no JSON"),
        ((200, b"[" * 50_000), "no JSON"),
        ((200, b'{"data": []}'), r"no data\.0\.intensity\.actual"),
        ((200, b'{"data": [{"intensity": {"actual": null}}]}'), "not a number from 0 to 5000"),
        ((200, b'{"data": [{"intensity": {"actual": true}}]}'), "not a number"),
        ((200, b'{"data": [{"intensity": {"actual": NaN}}]}'), "not a number"),
        ((200, b'{"data": [{"intensity": {"actual": -1}}]}'), "not a number"),
        ((200, b'{"data": [{"intensity": {"actual": 1e9}}]}'), "not a number"),
        ((200, b" " * 70_000), "longer than 65536"),
        ((302, b""), "answered 302"),
        ((500, b"oh"), "answered 500"),
    ],
)
def test_what_is_no_figure(web: Web, says: tuple[int, bytes], why: str) -> None:
    web.says = says
    with pytest.raises(Unusable, match=why):
        ask(web.source())


@pytest.mark.parametrize("content", [None, "", "two words", "schlüssel", "a\nb"])
def test_a_secret_that_is_none(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    path = tmp_path / "secret"
    monkeypatch.setenv(TOKEN_FILE, str(path))
    if content is not None:
        path.write_text(content)
    with pytest.raises(Unusable, match=TOKEN_FILE) as caught:
        ask(web.source(token_header="auth-token"))
    assert not content or content not in str(caught.value)
    assert not web.heard, "nobody is asked without it"


def test_old_answers_count_for_a_while(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    source: GridSource | None = web.source(every_minutes=5, hold_minutes=30)
    live = LiveGrid(lambda: source, lambda: now)
    web.answers(200)
    assert live.grams_per_kwh() is None, "nobody waits for the first answer"
    until(lambda: live.grams_per_kwh() == (200, "live, a web"), 30, "the first answer")
    web.answers(300)
    now += 299
    assert live.grams_per_kwh() == (200, "live, a web")
    assert len(web.heard) == 1, "it is not asked more often than it is said"
    now += 1
    until(lambda: live.grams_per_kwh() == (300, "live, a web"), 30, "the next answer")
    web.says = (503, b"")
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            asked = len(web.heard)
            now += 300
            assert live.grams_per_kwh() == (300, "live, a web"), "an answer holds for half an hour"
            until(lambda asked=asked: len(web.heard) > asked and not live.asks, 30, "it to be asked")  # type: ignore[misc]
    assert [record.message for record in caplog.records] == [
        "grid_live, a web: it answered 503; the figures of `grid` count until it answers"
    ], "once, not each time"
    now += 301
    assert live.grams_per_kwh() is None
    source = None
    assert live.grams_per_kwh() is None


def test_another_source_is_asked_at_once(web: Web) -> None:
    source = web.source()
    live = LiveGrid(lambda: source, lambda: 0.0)
    web.answers(200)
    until(live.grams_per_kwh, 30, "the first answer")
    source = web.source("elsewhere")
    assert live.grams_per_kwh() is None, "what another source said is not its answer"
    web.says = (200, b'{"elsewhere": 7}')
    source = web.source("elsewhere", every_minutes=1)
    until(lambda: live.grams_per_kwh() == (7, "live, a web"), 30, "its answer")


def test_the_ledger_says_whose_figure_it_took(web: Web, tmp_path: Path) -> None:
    web.answers(200)
    source = web.source()
    policy = (
        "version: 1\ngrid: [{grams_per_kwh: 380, source: a table}]\n"
        f"grid_live: {{url: '{source.url}', value: {source.value}, source: a web}}\n"
    )
    house = House(tmp_path, policy)
    ann = house.start("ann", "1/2").json()["session"]
    card = ann["cards"][0]["uuid"]
    said = []
    for step, share in enumerate(("1", "1/2", "1")):
        if step:
            until(house.service.keeper._live.grams_per_kwh, 30, "the first answer")
        house.fleet.energy[card] = 3_600_000 * (step + 1)
        house.service.keeper._next_reading = 0.0
        house.service.look()
        house.ask("ann", "PATCH", f"/sessions/{ann['id']}", json={"share": share})
        said.append(house.ask("ann", "GET", f"/events?session={ann['id']}").json()["events"][0])
    assert [(row["co2_ug"], row["method"]) for row in said[1:]] == [
        (200 * 1000, "card counter by share; 200 g/kWh, live, a web"),
        (100 * 1000, "card counter by share; 200 g/kWh, live, a web"),
    ]
    house.engine.dispose()


@pytest.mark.parametrize(
    "url",
    [
        "http://grid.example.org/",
        "ftp://127.0.0.1/",
        "https://u:p@grid.example.org/",
        "https:///x",
        "file:///etc/passwd",
    ],
)
def test_addresses_that_a_policy_may_not_name(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"grid_live\.url: an https:// address"):
        parse(f'version: 1\ngrid_live: {{url: "{url}", value: a, source: x}}\n')
