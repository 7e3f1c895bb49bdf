"""Fifty servers asked for at once, as pods with a share each, over the same by plain KubeSpawner: p99 to ready.

The same hub configuration, image and cluster, one after the other in the same run; only the spawner is exchanged. The
first start of each hub, which fills caches, is not counted.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from tests.bench.cluster import line, load, need, percentile
from tests.support.cluster.cards import card_node
from tests.support.cluster.cluster import OwnCluster, cluster
from tests.support.cluster.hub import cluster_stack
from tests.support.common import until
from tests.support.stack import Stack

STARTS = 50
#: So many eighths and more.
CARDS = "7*h100-80gb"
SPAWNERS = {"plain KubeSpawner": "kubespawner.KubeSpawner", "with a share": "kube-gpu"}
_WITHIN = 1200.0


def run() -> tuple[float, str]:
    """The p99 with shares over the plain one."""
    need()
    print(f"{STARTS} starts at once; {load()}")
    taken = {}
    with cluster() as made, card_node(made, CARDS):
        for what, spawner in SPAWNERS.items():
            taken[what] = _starts(made, spawner)
            print(line(what, taken[what], "s"))
    plain, ours = (percentile(taken[what], 99) for what in SPAWNERS)
    return ours / plain, "times"


def _starts(made: OwnCluster, spawner: str) -> list[float]:
    """Seconds from the request to ready, of each."""
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        namespace = opened.enter_context(made.namespace("plain" if "." in spawner else "shares"))
        hub = opened.enter_context(cluster_stack(made, namespace, Path(folder) / "hub", spawner=spawner))
        api = opened.enter_context(_api(hub))
        names = [f"u{number}" for number in range(STARTS)]
        assert api.post("/users", json={"usernames": ["first", *names]}).status_code == 201
        _ready(api, ["first"])
        _stop(api, ["first"])
        taken = _ready(api, names)
        _stop(api, names)
    return taken


def _api(hub: Stack) -> httpx.Client:
    token = hub.token("admin")
    return httpx.Client(base_url=f"{hub.url}/hub/api", headers={"Authorization": f"token {token}"}, timeout=300)


def _ready(api: httpx.Client, names: list[str]) -> list[float]:
    """Ask for the servers, and look at all of them until each is ready; how long each took."""
    began, taken = {}, {}
    for name in names:
        began[name] = time.monotonic()
        answer = api.post(f"/users/{name}/server", json={"share": "1/8"})
        assert answer.status_code in (201, 202), answer.text

    def all_ready() -> bool:
        for name, servers in _servers(api).items():
            if name in began and name not in taken and servers.get("", {}).get("ready"):
                taken[name] = time.monotonic() - began[name]
        return len(taken) == len(names)

    until(all_ready, _WITHIN, lambda: f"{len(names)} servers, of which {len(taken)} are ready", every=0.2)
    return list(taken.values())


def _stop(api: httpx.Client, names: list[str]) -> None:
    for name in names:
        assert api.delete(f"/users/{name}/server").status_code in (202, 204)
    until(lambda: not any(_servers(api).values()), 600, "the servers to stop", every=0.5)


def _servers(api: httpx.Client) -> dict[str, dict[str, dict[str, object]]]:
    found = api.get("/users", params={"limit": 200, "include_stopped_servers": "0"})
    assert found.status_code == 200, found.text
    return {user["name"]: user["servers"] for user in found.json()}
