"""The server extension in a real Jupyter server, installed as a person installs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import websocket
from conftest import start_jupyter, stop, wait_for
from gpuspawner_lab.checkpoints import RUNS
from lab_service import TOKEN, Service

API = "gpuspawner/api"
SCHEMA = "urn:gpuspawner:telemetry:1"
GIB = 2**30


@pytest.fixture
def events(jupyter: httpx.Client) -> Iterator[websocket.WebSocket]:
    url = str(jupyter.base_url.join("api/events/subscribe")).replace("http", "ws", 1)
    socket = websocket.create_connection(url, timeout=20, header=[f"Authorization: {jupyter.headers['Authorization']}"])
    yield socket
    socket.close()


def next_telemetry(socket: websocket.WebSocket) -> dict:
    while True:
        event = json.loads(socket.recv())
        if event["schema_id"] == SCHEMA:
            return event


@pytest.mark.case("hub-19")
def test_status_tells_share_and_readings(jupyter: httpx.Client, hub_service: Service) -> None:
    answer = jupyter.get(f"{API}/status")
    assert answer.status_code == 200
    body = answer.json()
    assert body["session"]["share"] == hub_service.share
    assert body["telemetry"]["memory_used_bytes"] == 3 * GIB
    assert body["telemetry"]["memory_allowed_bytes"] == 20 * GIB
    assert body["telemetry"]["power_watts"] == 71.2
    assert body["telemetry"]["simulated"] is True
    assert TOKEN not in answer.text


def test_offers_are_passed_on(jupyter: httpx.Client) -> None:
    assert jupyter.get(f"{API}/offers").json()["offers"][0]["model"] == "h100-80gb"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "status"),
        ("GET", "offers"),
        ("PATCH", "share"),
        ("POST", "watch"),
        ("GET", "checkpoints"),
        ("POST", "checkpoints"),
    ],
)
def test_nothing_without_a_token(jupyter: httpx.Client, hub_service: Service, method: str, path: str) -> None:
    before = list(hub_service.requests)
    answer = httpx.request(method, jupyter.base_url.join(f"{API}/{path}"), json={"share": "1/8"})
    assert answer.status_code == 403
    assert hub_service.requests == before


def test_a_page_elsewhere_cannot_resize(jupyter: httpx.Client, hub_service: Service) -> None:
    # Signed in by cookie, as a browser is, but without the XSRF token that only our pages know.
    browser = httpx.Client(base_url=jupyter.base_url)
    assert browser.get("api/contents", params={"token": "lab-token"}).status_code == 200
    assert browser.get(f"{API}/status").status_code == 200
    refused = browser.patch(f"{API}/share", json={"share": "1/2"})
    assert refused.status_code == 403
    assert hub_service.share == "1/4"


def test_resize_and_back(jupyter: httpx.Client, hub_service: Service) -> None:
    answer = jupyter.patch(f"{API}/share", json={"share": "1/2"})
    assert (answer.status_code, answer.json()["session"]["share"]) == (200, "1/2")
    assert hub_service.share == "1/2"
    assert jupyter.patch(f"{API}/share", json={"share": "1/4"}).status_code == 200
    assert hub_service.share == "1/4"


def test_refusals_keep_the_services_words(jupyter: httpx.Client, hub_service: Service) -> None:
    hub_service.used = 15 * GIB
    try:
        answer = jupyter.patch(f"{API}/share", json={"share": "1/8"})
    finally:
        hub_service.used = 3 * GIB
    assert answer.status_code == 409
    assert answer.json()["error"]["need_to_free_bytes"] == 5 * GIB
    assert answer.json()["message"] == "Free 5.0 GiB first. Nothing was changed."
    assert jupyter.patch(f"{API}/share", json={"share": "1"}).json()["error"]["code"] == "no_room"
    assert hub_service.share == "1/4"


@pytest.mark.parametrize(
    "share", [True, None, 1, 0.25, ["1/2"], {"a": 1}, "", "1/3", "-1/8", "9/8", "1e999", " 1/2", "１/2", "1/2\n", "0"]
)
def test_bad_shares_name_the_field(jupyter: httpx.Client, hub_service: Service, share: object) -> None:
    before = list(hub_service.requests)
    answer = jupyter.patch(f"{API}/share", json={"share": share})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["field"] == "share"
    assert error["allowed"] == ["1/8", "1/4", "1/2", "1"]
    assert [r for r in hub_service.requests if r[0] == "PATCH"] == [r for r in before if r[0] == "PATCH"]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b'{"share": NaN}', 400),
        (b'{"share": "1/2"', 400),
        (b"\xff\xfe", 400),
        (b"[" * 4000, 400),
        (b"[]", 422),
        (b"3", 422),
        (b"null", 422),
        (b"{}", 422),
        (b"", 422),
        (b'{"share": "1/2", "user": "bob"}', 422),
        (b'{"share": "' + b"1" * 10_000_000 + b'"}', 413),
    ],
)
def test_bad_bodies_are_the_callers_fault(jupyter: httpx.Client, hub_service: Service, raw: bytes, status: int) -> None:
    answer = jupyter.patch(f"{API}/share", content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert len(answer.content) < 2000
    assert answer.json()["error"]["message"] == answer.json()["message"]
    assert hub_service.share == "1/4"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"seconds": true}',
        b'{"seconds": -1}',
        b'{"seconds": 0.5}',
        b'{"seconds": 1e999}',
        b'{"seconds": "5"}',
        b'{"seconds": ' + b"1" * 4000 + b"}",
    ],
    ids=["true", "negative", "half", "infinite", "text", "a number of thousands of digits"],
)
def test_bad_watch(jupyter: httpx.Client, raw: bytes) -> None:
    answer = jupyter.post(f"{API}/watch", content=raw)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "seconds")


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b'{"viewer": 3}', "viewer"),
        (b'{"viewer": "' + b"v" * 65 + b'"}', "viewer"),
        (b'{"detail": 1}', "detail"),
        (b'{"who": "x"}', "who"),
    ],
)
def test_bad_viewers(jupyter: httpx.Client, raw: bytes, field: str) -> None:
    answer = jupyter.post(f"{API}/watch", content=raw)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)


def test_burst_is_switched_and_only_by_a_boolean(jupyter: httpx.Client, hub_service: Service) -> None:
    assert jupyter.patch(f"{API}/share", json={"burst": True}).json()["session"]["burst"] is True
    assert hub_service.burst is True
    for bad in (1, "true", None):
        refused = jupyter.patch(f"{API}/share", json={"burst": bad})
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, "burst")
    assert jupyter.patch(f"{API}/share", json={"burst": False}).status_code == 200
    assert hub_service.burst is False


def test_a_panel_is_told_the_kernels_and_is_sent_what_changed(
    jupyter: httpx.Client, events: websocket.WebSocket
) -> None:
    body = jupyter.post(f"{API}/watch", json={"seconds": 30, "viewer": "p", "detail": True}).json()
    holder = next(one for one in body["detail"]["holders"] if one["kind"] == "process")
    assert body["telemetry"]["processes"] == [{"pid": holder["pids"][0], "memory_bytes": 3 * GIB}]
    revision = body["telemetry"]["revision"]
    session = jupyter.post(
        "api/sessions",
        json={"path": "train.ipynb", "name": "train.ipynb", "type": "notebook", "kernel": {"name": "python3"}},
    ).json()
    try:
        while next_telemetry(events).get("revision", revision) == revision:
            pass
        kernel = next(
            one for one in jupyter.get(f"{API}/status").json()["detail"]["holders"] if one["kind"] == "kernel"
        )
        assert (kernel["title"], kernel["kernel_id"]) == ("train.ipynb", session["kernel"]["id"])
        assert kernel["pids"] == []  # it holds nothing
    finally:
        jupyter.delete(f"api/sessions/{session['id']}")
        assert jupyter.post(f"{API}/watch", json={"seconds": 0, "viewer": "p"}).json() == {"configured": True}
    assert "detail" not in jupyter.get(f"{API}/status").json()


def test_checkpoints_are_listed_and_asked_for(jupyter: httpx.Client, jupyter_home: Path) -> None:
    assert jupyter.get(f"{API}/checkpoints").json() == {"runs": []}
    folder = jupyter_home / RUNS / "resnet"
    folder.mkdir(parents=True)
    state = {"format": 1, "run": "resnet", "checkpoints": [{"name": "step-1", "pinned": False}]}
    (folder / "state.json").write_text(json.dumps(state))
    (run,) = jupyter.get(f"{API}/checkpoints").json()["runs"]
    assert run["checkpoints"][0]["name"] == "step-1"
    wanted = {"run": "resnet", "checkpoint": "step-1", "action": "pin"}
    answer = jupyter.post(f"{API}/checkpoints", json=wanted)
    assert answer.status_code == 202
    assert [path.stem for path in (folder / "requests").iterdir()] == [answer.json()["request"]]
    for change, status, field in (
        ({"action": "delete"}, 422, "action"),
        ({"checkpoint": "step-2"}, 404, "checkpoint"),
        ({"run": "../x"}, 404, "run"),
        ({"user": "bob"}, 422, "user"),
    ):
        refused = jupyter.post(f"{API}/checkpoints", json={**wanted, **change})
        assert (refused.status_code, refused.json()["error"]["field"]) == (status, field)


@pytest.mark.parametrize("broken", [500, 502, 503])
def test_a_broken_service_is_one_sentence(jupyter: httpx.Client, hub_service: Service, broken: int) -> None:
    hub_service.broken = broken
    try:
        resize = jupyter.patch(f"{API}/share", json={"share": "1/2"})
        status = wait_for(
            lambda: (r := jupyter.get(f"{API}/status")).status_code == 503 and r, "the service being missed"
        )
    finally:
        hub_service.broken = None
    assert resize.status_code == 503
    assert "Your share and your kernels are kept" in resize.json()["message"]
    # What was known stays known, and the driver is still read.
    assert status.json()["session"]["share"] == "1/4"
    assert status.json()["telemetry"]["memory_used_bytes"] == 3 * GIB
    wait_for(lambda: jupyter.get(f"{API}/status").status_code == 200, "the service being back")


def test_telemetry_comes_while_watched_and_follows_the_share(
    jupyter: httpx.Client, hub_service: Service, events: websocket.WebSocket
) -> None:
    assert jupyter.post(f"{API}/watch", json={"seconds": 30}).status_code == 200
    first = next_telemetry(events)
    assert (first["available"], first["share"], first["utilization_percent"]) == (True, "1/4", 12)
    hub_service.share = "1/2"  # changed by somebody else
    try:
        while next_telemetry(events)["share"] != "1/2":
            pass
    finally:
        hub_service.share = "1/4"


def test_a_server_without_a_share_says_so(tmp_path, service: Service) -> None:
    process, url, token = start_jupyter(tmp_path, {})
    try:
        with httpx.Client(base_url=url, headers={"Authorization": f"token {token}"}, timeout=30) as client:
            assert client.get(f"{API}/status").json() == {"configured": False, "session": None, "telemetry": None}
            assert client.post(f"{API}/watch", json={}).json()["configured"] is False
            refused = client.patch(f"{API}/share", json={"share": "1/2"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "no_session")
    finally:
        stop(process)
