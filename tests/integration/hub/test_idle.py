"""Sessions that nobody uses are warned, shrunk and culled; those at work are not, whoever looks on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import websocket
from support.common import until
from support.compute import compiled
from support.hub import Hub, User
from support.pages import put
from support.stack import stack

pytestmark = [pytest.mark.hub, pytest.mark.timeout(400)]

WARN, SHRINK, CULL = 8, 18, 28


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    env = {
        "GPUSPAWNER_IDLE_WARN_SECONDS": str(WARN),
        "GPUSPAWNER_IDLE_SHRINK_SECONDS": str(SHRINK),
        "GPUSPAWNER_IDLE_CULL_SECONDS": str(CULL),
        "GPUSPAWNER_IDLE_CHECK_SECONDS": "1",
        "GPUSPAWNER_SIMULATED_TIMED": "yes",
    }
    with stack(tmp_path_factory.mktemp("idle"), env=env) as made:
        yield Hub(made)


def notices(user: User) -> dict[str, str]:
    return {notice["code"]: notice["message"] for notice in user.session()["notices"]}


def token_of(user: User) -> dict[str, str]:
    return {"Authorization": f"token {user.hub.stack.token(user.name)}"}


def open_tab(user: User) -> websocket.WebSocket:
    """The socket that an open tab of JupyterLab holds, over which telemetry comes."""
    kernel = user.kernel()
    address = f"{kernel.base}api/events/subscribe".replace("http:", "ws:")
    return websocket.create_connection(
        address, timeout=30, header=[f"Authorization: {kernel.headers['Authorization']}"]
    )


def launch_without_end(user: User, program: Path) -> None:
    """Kernels on the user's card, launched by a program that no Jupyter kernel or terminal waits for."""
    put(user.hub.stack, user.name, "compute", program.read_bytes(), 0o755)
    code = (
        "import subprocess\n"
        "load = subprocess.Popen(['./compute', '2000', 'sync', '0'], stdout=-1, start_new_session=True)\n"
        "print(load.stdout.readline())"
    )
    assert user.kernel()(code) == "b'ready\\n'\n"


#: Five hours of training, as a kernel sees it: it ends when the test says so.
TRAINING = """
import time
from pathlib import Path
ended = time.monotonic() + 300
while not Path("go").exists() and time.monotonic() < ended:
    time.sleep(0.05)
"""


@pytest.mark.case("hub-14")
def test_the_idle_are_warned_shrunk_and_culled_and_the_busy_are_not(hub: Hub, tmp_path: Path) -> None:
    with hub.user("tab") as tab, hub.user("cpu") as cpu, hub.user("gpu") as gpu:
        gpu.start({"share": "1/4"})
        launch_without_end(gpu, compiled(tmp_path))
        cpu.start({"share": "1/4"})
        training = threading.Thread(target=cpu.kernel(), args=(TRAINING, 330))  # the browser closed
        training.start()
        idle = tab.start({"share": "1/2"})
        socket = open_tab(tab)
        looking = threading.Event()

        def look() -> None:
            while not looking.wait(1):
                tab.browser.get("/user/tab/gpuspawner/api/status", headers=headers)

        headers = token_of(tab)
        looker = threading.Thread(target=look)
        looker.start()
        try:
            until(lambda: notices(tab) == {}, what="a start to count as use")
            warning = until(lambda: notices(tab).get("idle"), 60, "a warning")
            assert "1/8" in warning
            assert tab.session()["share"] == "1/2", "warned first"
            until(lambda: tab.session()["share"] == "1/8", 60, "the shrink")
            assert "Shrunk from 1/2" in notices(tab)["idle_shrunk"]
            assert "stopped" in notices(tab)["idle"]
            until(lambda: not tab.sessions(), 60, "the culler")
        finally:
            looking.set()
            looker.join()
            socket.close()
        until(lambda: not tab.server(), 60, "the hub to know")
        with hub.stack.service() as service:
            rows = service.get("/events", params={"session": idle["id"]}).json()["events"]
        assert [row["kind"] for row in rows] == ["free", "end", "resize", "start"]
        assert "idle for" in rows[1]["reason"]
        assert rows[2]["actor"] == "node"

        assert training.is_alive(), "the kernel still computes"
        for busy in (cpu, gpu):
            assert busy.session()["share"] == "1/4"
            assert busy.session()["notices"] == []
        telemetry = gpu.browser.get("/user/gpu/gpuspawner/api/status", headers=token_of(gpu)).json()["telemetry"]
        assert telemetry["utilization_percent"] > 5
        put(hub.stack, "cpu", "go", "")
        training.join()
        assert tab.start({"share": "1/8"})["id"] != idle["id"]


def test_the_cullers_token_can_do_nothing_else(hub: Hub) -> None:
    with hub.user("ann") as ann:
        session = ann.start({"share": "1/8"})
        culler = {"Authorization": f"Bearer {hub.stack.secret('culler_token')}"}
        with hub.stack.service() as service:
            path = f"/sessions/{session['id']}"
            assert service.get(path, headers=culler).status_code == 200
            assert service.patch(path, json={"share": "1/4"}, headers=culler).status_code == 403
            assert service.delete(path, headers=culler).status_code == 403
        assert ann.browser.get("/hub/api/users/ann/tokens", headers=culler).status_code in (403, 404)
        assert ann.browser.post("/hub/api/users/ann/servers/x", headers=culler).status_code in (403, 404)
