"""What holds for every request: once only with a key, pages, a limit for each token, the audit, the metrics."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from support.memory_fleet import House, MemoryFleet, Tokens

from gpuspawner.errors import Unavailable
from gpuspawner.service.app import create_app
from gpuspawner.service.requests import records
from gpuspawner.service.requests.events import Events
from gpuspawner.service.requests.rate import RateLimit

DASHBOARD = Path(__file__).parents[3] / "docs/how-to/monitor/dashboard.json"


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path, fleet=MemoryFleet(cards=4))


def test_a_change_with_a_key_happens_once(house: House) -> None:
    session = house.start("ann", "1/8").json()["session"]["id"]
    at, key = f"/sessions/{session}", {"Idempotency-Key": "0123456789"}
    first = house.ask("ann", "PATCH", at, json={"share": "1/2"}, headers=key)
    house.ask("ann", "PATCH", at, json={"share": "1/4"})
    again = house.ask("ann", "PATCH", at, json={"share": "1/2"}, headers=key)
    assert (again.status_code, again.json()) == (200, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    assert house.fleet.held[session].eighths_per_card == 2, "nothing was done again"
    other = house.ask("ann", "PATCH", at, json={"share": "1"}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency")
    mine = house.ask("admin", "PATCH", at, json={"share": "1"}, headers=key)
    assert mine.status_code == 200, "another token's key is another key"
    bad = house.ask("ann", "PATCH", at, json={"share": "1"}, headers={"Idempotency-Key": "a b"})
    assert (bad.status_code, bad.json()["error"]["field"]) == (422, "Idempotency-Key")


def test_a_key_is_free_again_after_a_day(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    now = records.now_ms()
    monkeypatch.setattr(records, "now_ms", lambda: now)
    session = house.start("ann", "1/8").json()["session"]["id"]
    at = f"/sessions/{session}"

    def ask(share: str, key: str = "0123456789") -> str | None:
        answer = house.ask("ann", "PATCH", at, json={"share": share}, headers={"Idempotency-Key": key})
        assert answer.status_code == 200
        return answer.headers.get("idempotency-replayed")

    ask("1/2")
    now += records.KEPT
    ask("1/4", "another-one")  # which has just swept
    assert ask("1/2") == "true", "a day is not over yet"
    now += 1
    assert ask("1/2") is None
    assert ask("1/2") == "true", "the new answer is kept in the place of the old one"
    with house.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM replies")) == 2, "the other is not old yet"


async def test_the_same_key_twice_at_once_is_one_change(house: House) -> None:
    session = house.start("ann", "1/8").json()["session"]["id"]
    row = house.store.ledger(session)[0].id
    headers = {"Idempotency-Key": "0123456789", "Authorization": "Bearer admin"}
    body = {"row": row, "amount": "1.00", "reason": "twice"}
    transport = httpx.ASGITransport(house.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test/api/v1") as client:
        both = await asyncio.gather(*(client.post("/ledger/corrections", json=body, headers=headers) for _ in range(5)))
    assert {answer.status_code for answer in both} == {201}
    assert len({answer.json()["id"] for answer in both}) == 1
    assert [each.kind for each in house.store.ledger(session)] == ["correction", "start"]


def test_a_refusal_is_kept_and_a_missing_sign_in_is_not(house: House) -> None:
    session = house.start("ann", "1").json()["session"]["id"]
    key = {"Idempotency-Key": "0123456789"}
    for _ in range(2):
        refused = house.ask("ann", "PATCH", f"/sessions/{session}", json={"share": "1/3"}, headers=key)
        assert refused.status_code == 422
    assert house.client.request("PATCH", f"/sessions/{session}", json={}, headers=key).status_code == 401


def test_pages(house: House) -> None:
    for number in range(5):
        house.start("ann", "1/8", server=f"s{number}")
    seen, after = [], None
    for _ in range(3):
        page = house.ask("ann", "GET", "/sessions", params={"limit": 2, **({"after": after} if after else {})}).json()
        seen += [session["server"] for session in page["sessions"]]
        after = page["next"]
    assert sorted(seen) == [f"s{number}" for number in range(5)]
    assert after is None
    assert house.ask("ann", "GET", "/sessions?after=s-none").status_code == 404
    page = house.ask("admin", "GET", "/events?limit=4").json()
    older = house.ask("admin", "GET", f"/events?limit=1000&before={page['next']}").json()
    numbers = [row["id"] for row in (*page["events"], *older["events"])]
    assert numbers == list(range(max(numbers), 0, -1))
    assert older["next"] is None


def test_each_token_has_its_own_limit() -> None:
    now = [0.0]
    limit = RateLimit(10, 3, lambda: now[0])
    assert [limit.wait(b"a") for _ in range(3)] == [0, 0, 0]
    assert limit.wait(b"a") == pytest.approx(0.1)
    assert limit.wait(b"b") == 0
    now[0] += 0.1
    assert limit.wait(b"a") == 0
    assert limit.wait(b"a") > 0
    assert RateLimit(0).wait(b"a") == 0


def test_too_many_requests_are_a_429_with_when_to_come_back(tmp_path: Path) -> None:
    house = House(tmp_path, rate=RateLimit(0.01, 3))
    answers = [house.ask("ann", "GET", "/sessions") for _ in range(5)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert refused[0].json()["error"]["code"] == "rate_limit"
    assert int(refused[0].headers["retry-after"]) >= 1
    assert house.client.get("/health").status_code == 200


def test_the_audit_says_who_did_what_to_whom_from_where_and_why(house: House) -> None:
    session = house.start("ann", "1/8").json()["session"]["id"]
    why = {"X-Gpuspawner-Reason": "her deadline", "X-Forwarded-For": "6.6.6.6, 10.1.2.3"}
    house.ask("admin", "PATCH", f"/sessions/{session}", json={"share": "1/4"}, headers=why)
    house.ask("eve", "PATCH", f"/sessions/{session}", json={"share": "1"})
    house.ask("eve", "POST", "/sessions", json={"user": "ann", "share": "1/8"})
    told = house.ask("admin", "GET", "/audit").json()
    assert told["problem"] is None
    told = [
        (each["actor"], each["action"], each["user"], each["session"], each["status"], each["source"], each["why"])
        for each in told["entries"]
    ]
    assert told == [
        ("eve", "POST /sessions", "ann", "", 403, "testclient", ""),
        ("eve", "PATCH /sessions/{session}", "ann", session, 404, "testclient", ""),
        ("admin", "PATCH /sessions/{session}", "ann", session, 200, "10.1.2.3 by proxy", "her deadline"),
        ("hub", "POST /sessions", "ann", "", 201, "testclient", ""),
    ]
    assert [each["user"] for each in house.ask("admin", "GET", "/audit?user=eve&limit=1").json()["entries"]] == ["ann"]
    assert house.ask("ann", "GET", "/audit").status_code == 403
    with pytest.raises(sa.exc.DatabaseError), house.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM audit"))
    with house.engine.begin() as connection:
        connection.execute(sa.text("DROP TRIGGER audit_no_UPDATE"))
        connection.execute(sa.text("UPDATE audit SET actor = 'nobody' WHERE id = 2"))
    assert "Row 2 of the audit was changed" in house.ask("admin", "GET", "/audit").json()["problem"]


def test_the_audit_by_jupyters_event_system(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    house = House(tmp_path)
    app = create_app(house.service, Tokens(), house.tariff, events=Events(path))  # type: ignore[arg-type]
    client = TestClient(app, base_url="http://test/api/v1")
    body = {"user": "ann", "share": "1/8"}
    for who in ("hub", "eve"):
        client.post("/sessions", json=body, headers={"Authorization": f"Bearer {who}"})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["actor"], line["action"], line["user"], line["status"]) for line in lines] == [
        ("hub", "POST /sessions", "ann", 201),
        ("eve", "POST /sessions", "ann", 403),
    ]
    assert {line["__schema__"] for line in lines} == {"https://schema.jupyter.org/gpuspawner/change"}
    rows = house.ask("admin", "GET", "/audit").json()["entries"]
    assert [line["hash"] for line in lines] == [row["hash"] for row in reversed(rows)]
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(Unavailable, match="cannot be written"):
        Events(tmp_path)
    house.engine.dispose()


def test_metrics_and_the_dashboard_that_shows_them(house: House) -> None:
    house.start("ann", "1/2")
    house.service.look()
    assert house.ask("ann", "GET", "/metrics").status_code == 403
    families = {each.name: each for each in text_string_to_metric_families(house.ask("admin", "GET", "/metrics").text)}
    free = sorted(sample.value for sample in families["gpuspawner_card_free_eighths"].samples)
    assert free == [4, 8, 8, 8]
    assert {sample.labels["state"]: sample.value for sample in families["gpuspawner_sessions"].samples}["running"] == 1
    starts = [
        sample.value
        for sample in families["gpuspawner_requests"].samples
        if sample.labels.get("method") == "POST" and sample.labels["status"] == "201" and sample.name.endswith("_total")
    ]
    assert starts == [1]
    names = {sample.name for family in families.values() for sample in family.samples}
    dashboard = json.loads(DASHBOARD.read_text())
    used = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"gpuspawner_\w+", target["expr"])
    }
    assert used
    assert used <= names
    identities = [panel["id"] for panel in dashboard["panels"]]
    assert len(identities) == len(set(identities))
