"""A training gives way to an urgent request: it is saved, its server is stopped, and it comes back with its state."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.common import until
from support.hub import Hub, Kernel, User
from support.pages import put
from support.stack import stack

pytestmark = [pytest.mark.hub, pytest.mark.timeout(1500)]

#: Seconds; a server is stopped and another one started within
LONG = 400.0
ROOT = Path(__file__).parents[3]
POLICY = """
version: 1
queue:
- {users: [ursa], default: inference-urgent}
- {users: [tom, tia], default: training}
parking:
- {class: training, notice_seconds: 240, rest_minutes: 0, floor: "1"}
"""
#: numba has a copy of it, and no other package here
PICKLE = "from numba.cloudpickle.cloudpickle import *\nfrom numba.cloudpickle.cloudpickle import Pickler\n"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("parking")
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    env = {"GPUSPAWNER_PARKING": "yes", "GPUSPAWNER_POLICY": str(policy)}
    with stack(folder / "state", "1*h100-80gb", env=env) as made:
        yield Hub(made)


def with_runtime(user: User) -> Kernel:
    """A kernel in which the runtime can be imported."""
    home = user.hub.stack.state / "users" / user.name
    put(user.hub.stack, user.name, "cloudpickle.py", PICKLE)
    shutil.copytree(ROOT / "images/runtime/gpuspawner_runtime", home / "gpuspawner_runtime", dirs_exist_ok=True)
    owner = home.stat()
    for path in [home / "gpuspawner_runtime", *(home / "gpuspawner_runtime").rglob("*")]:
        os.chown(path, owner.st_uid, owner.st_gid)
    return user.kernel()


def states(hub: Hub, user: str) -> list[str]:
    return [each["state"] for each in hub.sessions(user)]


def back(kernel: Kernel, code: str) -> str | None:
    """What the kernel of that id prints, if it is there."""
    try:
        return kernel(code, within=20) if kernel.answers() else None
    except (AssertionError, TimeoutError, httpx.HTTPError, OSError):
        return None


def test_a_training_is_parked_for_the_urgent_and_comes_back_by_itself_with_its_state(hub: Hub) -> None:
    with hub.user("tom") as tom, hub.user("ursa") as ursa:
        first = tom.start({"share": "1"})
        kernel = with_runtime(tom)
        kernel("weights = list(range(1000)); step = 41\ndef train():\n    global step\n    step += 1\n    return step")
        assert kernel("print(train())") == "42\n"
        until(lambda: states(hub, "tom") == ["running"], LONG, "the session to run")

        assert ursa.ask({"share": "1/2", "wait": True}).status_code in (201, 202)
        until(lambda: ursa.server().get("ready"), LONG, "the urgent server")
        urgent = ursa.session()
        assert urgent["share"] == "1/2"
        assert tom.server().get("ready") is not True, "its server was stopped"
        (waits,) = until(lambda: [each for each in hub.queue() if each["user"] == "tom"], LONG, "tom to wait again")
        assert (waits["share"], waits["kind"]) == ("1", "training")
        with hub.stack.service() as service:
            rows = service.get("/events", params={"session": first["id"]}).json()["events"]
        assert [row["kind"] for row in rows] == ["free", "end", "start"]

        hub.kill("service")
        until(lambda: hub.answers("/services/gpuspawner/api/v1/health"), 60, "the service")
        ursa.stop()
        until(lambda: tom.server().get("ready"), LONG, "the server to come back")
        again = tom.session()
        assert again["id"] == waits["id"] != first["id"]
        assert again["share"] == "1"
        assert until(lambda: back(kernel, "print(train(), sum(weights))"), LONG, "its kernel") == "43 499500\n"


COMPUTES = """
import time
from pathlib import Path
ended = time.monotonic() + 600
while not Path("go").exists() and time.monotonic() < ended:
    time.sleep(0.05)
"""


def test_who_cannot_save_is_not_stopped(hub: Hub) -> None:
    with hub.user("tia") as tia, hub.user("ursa") as ursa:
        session = tia.start({"share": "1"})
        kernel = with_runtime(tia)
        kernel("import threading\nheld = threading.Lock()")
        until(lambda: states(hub, "tia") == ["running"], LONG, "the session to run")
        notice = hub.stack.state / "node/sessions" / session["id"] / "limit/notice"
        assert ursa.ask({"share": "1/2", "wait": True}).status_code in (201, 202)
        until(notice.exists, LONG, "a notice")
        first = json.loads(notice.read_text())["notice"]
        # it says that it cannot; it does not rest here, so that it is asked again
        until(lambda: notice.exists() and json.loads(notice.read_text())["notice"] != first, LONG, "another notice")
        assert kernel("print(held.locked())") == "False\n", "it runs on"
        assert tia.session()["id"] == session["id"]
        computes = threading.Thread(target=kernel, args=(COMPUTES, 700))
        computes.start()
        try:
            assert ursa.server().get("ready") is not True
            assert states(hub, "tia") == ["running"]
            assert ursa.api("DELETE", "/server").status_code in (202, 204)
            until(lambda: not hub.queue(), LONG, "nobody to wait")
            until(lambda: not notice.exists(), LONG, "the notice to be void")
            assert tia.session()["id"] == session["id"]
        finally:
            put(hub.stack, "tia", "go", "")
            computes.join()


def test_an_administrator_parks_a_session_and_it_comes_back_where_it_was_with_its_state(hub: Hub) -> None:
    with hub.user("tom") as tom, hub.stack.service() as service:
        first = tom.start({"share": "1/4"})
        kernel = with_runtime(tom)
        assert kernel("kept = 41\nprint(kept + 1)") == "42\n"
        until(lambda: states(hub, "tom") == ["running"], LONG, "the session to run")
        asked = service.post(f"/sessions/{first['id']}/park", json={"reason": "a new fan", "rest_minutes": 720})
        assert asked.status_code == 202, asked.text
        until(lambda: [each for each in hub.queue() if each["user"] == "tom"], LONG, "tom to wait")
        (waits,) = until(
            lambda: [each for each in hub.queue() if each["reason"].startswith("Parked by hub until")], LONG, "the rest"
        )
        assert (waits["place"], waits["parked"]["session"]) == (None, first["id"])
        assert hub.sessions("tom") == [], "the whole card is free, and it rests"
        assert service.delete(f"/sessions/{first['id']}/park").json()["back"] is None
        until(lambda: tom.server().get("ready"), LONG, "the server to come back")
        assert tom.session()["id"] == waits["id"]
        assert until(lambda: back(kernel, "print(kept)"), LONG, "its kernel") == "41\n"
