"""What a GPU session adds to the plain local spawner: the same hub, the same server, in the same run.

Both hubs are started by `gpuspawner up`; the second one's configuration is ours with only the spawner exchanged for
JupyterHub's SimpleLocalProcessSpawner. Rounds alternate, so that a busy machine is busy for both.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from tests.support.common import until
from tests.support.stack import Stack, stack

ROUNDS = 7
ROOT = Path(__file__).parents[2]

_PLAIN = f"""
import sys
load_subconfig({str(ROOT / "jupyterhub_config.py")!r})
c.JupyterHub.spawner_class = "simple"
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root"]
c.SimpleLocalProcessSpawner.home_dir_template = "{{state}}/plain/{{username}}"
"""


def _start_and_stop(api: httpx.Client) -> float:
    """Seconds from the request to a server that is ready, by JupyterHub's own progress events."""
    began = time.perf_counter()
    answer = api.post("/users/admin/server", json={})
    assert answer.status_code in (201, 202), answer.text
    if answer.status_code == 202:
        with api.stream("GET", "/users/admin/server/progress") as events:
            for line in events.iter_lines():
                assert '"failed": true' not in line, line
                if '"ready": true' in line:
                    break
    taken = time.perf_counter() - began
    api.delete("/users/admin/server")
    until(lambda: not api.get("/users/admin").json()["servers"], 60, "the server to stop")
    return taken


def _api(running: Stack) -> httpx.Client:
    token = running.token("admin")
    return httpx.Client(base_url=f"{running.url}/hub/api", headers={"Authorization": f"token {token}"}, timeout=120)


def run() -> tuple[float, str]:
    """The median over ROUNDS of the time added, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as hubs:
        config = Path(folder) / "plain.py"
        config.write_text(_PLAIN.replace("{state}", folder))
        Path(folder).chmod(0o711)
        ours = hubs.enter_context(stack(Path(folder) / "ours"))
        plain = hubs.enter_context(stack(Path(folder) / "plain", env={"GPUSPAWNER_HUB_CONFIG": str(config)}))
        apis = [hubs.enter_context(_api(running)) for running in (ours, plain)]
        for api in apis:
            _start_and_stop(api)  # first starts make homes and fill caches
        taken: list[tuple[float, float]] = []
        for round_ in range(ROUNDS):
            first, second = (0, 1) if round_ % 2 == 0 else (1, 0)
            pair = {first: _start_and_stop(apis[first]), second: _start_and_stop(apis[second])}
            taken.append((pair[0], pair[1]))
    added = statistics.median((a - b) * 1000 for a, b in taken)
    print(
        f"a start to a ready server, median of {ROUNDS}: with a share {statistics.median(a for a, _ in taken):.2f} s, "
        f"plain {statistics.median(b for _, b in taken):.2f} s (python {sys.version.split()[0]})"
    )
    return added, "ms"
