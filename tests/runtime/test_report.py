"""Cost from the hub's ledger, and the report: unknown is said, methods stand beside figures."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gpuspawner_runtime import choices, cost
from gpuspawner_runtime.cards import Reading
from gpuspawner_runtime.choices import Choice
from gpuspawner_runtime.energy import Meter
from gpuspawner_runtime.processor import Processor
from gpuspawner_runtime.report import Account, Report

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def row(at: datetime, eighths: int, price: str, session: str = "s1", kind: str = "resize") -> dict[str, Any]:
    return {
        "session": session,
        "kind": kind,
        "at": at.isoformat(),
        "eighths": eighths,
        "price_per_hour": price,
        "currency": "EUR",
    }


@pytest.mark.case("runtime-16")
def test_four_quarters_of_a_card_for_an_hour_are_one_card_hour() -> None:
    rows = [row(NOON, 2, "0.50", session=f"s{number}", kind="start") for number in range(4)]
    paid = cost.of_rows(rows, NOON, NOON + HOUR)
    assert paid is not None
    assert paid.card_hours == 1
    assert paid.micros == 2_000_000
    # and in seven uneven pieces, of which none is a whole number of anything
    cuts = [NOON + HOUR * part / 7 for part in range(8)]
    pieces = [cost.of_rows(rows, start, end) for start, end in pairwise(cuts)]
    assert sum(piece.card_hours for piece in pieces if piece) == 1


def test_each_stretch_costs_what_was_held_and_only_the_run_counts() -> None:
    rows = [
        row(NOON + 3 * HOUR, 0, "0.00", kind="end"),
        row(NOON + HOUR, 8, "2.00"),
        row(NOON, 2, "0.60", kind="start"),
    ]
    paid = cost.of_rows(rows, NOON + HOUR / 2, NOON + 5 * HOUR)
    assert paid is not None
    assert paid.micros == 300_000 + 4_000_000
    assert paid.card_hours == Fraction(1, 8) + 2
    assert str(paid) == "4.30 EUR"


@pytest.mark.parametrize(
    "damage", [{"price_per_hour": "x"}, {"price_per_hour": "NaN"}, {"at": "noon"}, {"eighths": True}, {"eighths": -1}]
)
def test_a_row_that_cannot_be_read_makes_the_cost_unknown(damage: dict[str, Any]) -> None:
    assert cost.of_rows([row(NOON, 2, "1.00") | damage], NOON, NOON + HOUR) is None
    assert cost.of_rows([3], NOON, NOON + HOUR) is None
    assert cost.of_rows([], NOON, NOON + HOUR) is None


def test_money_shows_what_little_there_is() -> None:
    assert cost.money(0, "EUR") == "0.00 EUR"
    assert cost.money(1234, "EUR") == "0.001234 EUR"
    assert cost.money(12_340_000, "") == "12.34"


class Service(HTTPServer):
    """Answers like the hub's service, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.answer: tuple[int, Any] = (200, {})
        super().__init__(("127.0.0.1", 0), _Answer)


class _Answer(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        status, body = self.server.answer
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    server = Service()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("GPUSPAWNER_SERVICE_URL", f"http://127.0.0.1:{server.server_port}/api/v1/")
    monkeypatch.setenv("GPUSPAWNER_SESSION", "s 1")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_hub_is_asked_about_this_session_with_its_token(service: Service) -> None:
    service.answer = (200, {"events": [row(NOON, 2, "0.50")]})
    paid = cost.between(NOON, NOON + HOUR)
    assert paid is not None
    assert paid.micros == 500_000
    assert service.asked == [("/api/v1/events?session=s%201&limit=1000", "Bearer secret")]


@pytest.mark.parametrize("answer", [(500, {}), (302, {}), (200, b"<html>"), (200, []), (200, {"events": None})])
def test_a_service_that_does_not_answer_makes_the_cost_unknown(service: Service, answer: tuple[int, Any]) -> None:
    service.answer = answer
    assert cost.between(NOON, NOON + HOUR) is None
    assert len(service.asked) == 1


def test_without_a_hub_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUSPAWNER_SERVICE_URL", "GPUSPAWNER_SESSION"):
        monkeypatch.delenv(name, raising=False)
    assert cost.between(NOON, NOON + HOUR) is None
    assert cost.session() is None


def plain() -> Report:
    return Report("bert", 1200, 300, 2, None, 0.25, 100.0, 3)


def test_what_is_not_known_is_called_unknown() -> None:
    text = str(plain())
    lines = {line.split()[0]: line for line in text.splitlines()[1:]}
    for name in ("lost", "cards", "processor", "CO2", "cost", "card-hours", "load"):
        assert lines[name].endswith("unknown"), lines[name]
    assert "250 ms, 0.25% of the time (3 checkpoints)" in lines["stall"]
    assert "1,200 steps in 100.0 s" in lines["steps"]
    assert plain().as_dict()["card_joules"] is None
    assert json.loads(json.dumps(plain().as_dict()))["cost_micros"] is None


def test_a_name_is_text_in_a_notebook() -> None:
    shown = Report("<b>x</b>", 1, 1, 0, 0, 0.0, 0.0, 0)._repr_html_()
    assert "<b>" not in shown
    assert "&lt;b&gt;x&lt;/b&gt;" in shown
    assert "unknown" in shown


class Card:
    name = "played"

    def __init__(self) -> None:
        self.joules = 0.0

    def read(self) -> list[Reading]:
        self.joules += 1_800_000
        return [Reading("GPU-a", self.joules, None, 0.5)]


def test_an_account_fills_a_report(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    began = datetime.now(UTC) - HOUR
    service.answer = (200, {"events": [row(began, 8, "3600000.00")]})
    monkeypatch.setattr(choices, "latest", Choice("eager", "fast: eager kept"))
    account = Account(Meter(Card(), Processor(Path("/nowhere")), lambda: None), zone="DE").start()
    account.stop()
    figures = account.figures()
    assert figures == account.figures()
    report = Report("bert", 2, 2, 0, 5, 0.0, 1.0, 0, lost_seconds=3.0, **figures)
    assert report.card_joules == 1_800_000
    assert report.gco2 == pytest.approx(0.5 * 381)
    assert report.cost_micros is not None
    assert 0 < report.cost_micros < 600 * 1_000_000  # a currency unit for each millisecond that the account was open
    text = str(report)
    assert "0.5 kWh   [measured: the card's counter (played, the whole card)]" in text
    assert "190 g   [cards; DE, 2023 average, Ember and Energy Institute]" in text
    assert "5 steps, 3.0 s" in text
    assert "50%" in text
    assert text.splitlines()[-1].split(maxsplit=1) == ["step", "eager kept"]


def test_figures_of_a_simulated_card_are_called_simulated(service: Service) -> None:
    service.answer = (200, {"events": [row(datetime.now(UTC) - HOUR, 8, "1.00")], "simulated": True})
    account = Account(Meter(Card(), Processor(Path("/nowhere")), lambda: None), zone="DE").start()
    account.stop()
    figures = account.figures()
    assert figures["card_method"] == "simulated; measured: the card's counter (played, the whole card)"
    assert figures["gco2_method"].startswith("simulated cards; ")


def test_an_account_that_never_began_knows_nothing() -> None:
    assert Account().figures() == {}
