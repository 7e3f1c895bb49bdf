"""GPUKubeSpawner over the real service and fleet; API server, scheduler and node are played."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml
from jupyterhub.services.auth import HubAuth
from support.common import free_ports, until
from support.fake_cluster import CLAIMS, NAMESPACE, PODS, Answering, FakeCluster, uuid
from traitlets.config import Config

from gpuspawner import kubernetes_names as names
from gpuspawner.fleet.kubernetes import KubernetesFleet
from gpuspawner.service.app import create_app
from gpuspawner.service.auth import Authenticator
from gpuspawner.service.database import open_database
from gpuspawner.service.sessions import SessionService
from gpuspawner.service.store import Store
from gpuspawner.service.tariff import Tariff
from gpuspawner.spawner.errors import Refused
from gpuspawner.spawner.kube import GPUKubeSpawner

TOKEN = "t" * 32


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    made = FakeCluster()
    made.node("n1")
    config = tmp_path / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": made.url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    config.write_text(yaml.safe_dump(content))
    monkeypatch.setattr("kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    yield made
    made.close()


@pytest.fixture
def fleet(cluster: FakeCluster) -> KubernetesFleet:
    return cluster.fleet()


@pytest.fixture
def service(fleet: KubernetesFleet, tmp_path: Path) -> Iterator[str]:
    """The service's address; its token is in tmp_path/token. It closes the fleet."""
    (tmp_path / "token").write_text(TOKEN)
    tariff = Tariff()
    sessions = SessionService(fleet, Store(open_database(f"sqlite:///{tmp_path}/db"), tariff))
    hub_auth = HubAuth(api_token=TOKEN, api_url="http://127.0.0.1:9/hub/api")
    app = create_app(sessions, Authenticator(hub_auth, TOKEN), tariff, "/services/gpuspawner/")
    port = free_ports(1)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    yield f"http://127.0.0.1:{port}/services/gpuspawner/api/v1"
    server.should_exit = True
    thread.join(20)


class Made:
    """Makes spawners, all of one hub."""

    def __init__(self, cluster: FakeCluster, service: str, token: Path) -> None:
        self._service, self._token, self._host = service, token, cluster.url

    def __call__(self, user: str = "ann", **more: Any) -> GPUKubeSpawner:
        settings = {
            "service_url": self._service,
            "service_token_file": str(self._token),
            "k8s_api_host": self._host,
            "namespace": NAMESPACE,
            "image": "notebook:1",
            "start_timeout": 60,
            "storage_pvc_ensure": False,
            **more,
        }
        spawner = GPUKubeSpawner(config=Config({"GPUKubeSpawner": settings}), _mock=True)
        spawner.user.name = user
        spawner.pod_name = spawner._expand_user_properties(spawner.pod_name_template)
        spawner.api_token = "secret"
        return spawner


@pytest.fixture
async def spawner(cluster: FakeCluster, service: str, tmp_path: Path) -> AsyncIterator[Made]:
    yield Made(cluster, service, tmp_path / "token")
    await GPUKubeSpawner._stop_all_reflectors()


async def start(spawner: GPUKubeSpawner, **options: Any) -> str:
    spawner.user_options = options
    await spawner.accept_options(options)
    return await spawner.start()


async def test_a_server_is_a_pod_with_the_claim_of_its_session(cluster: FakeCluster, spawner: Made) -> None:
    one = spawner("Ann Ö@x")
    with Answering(cluster):
        assert (await start(one, share="1/4")).startswith("http://127.0.0.1:8888")
        ((name, pod),) = cluster.under(PODS).items()
        ((session, claim),) = cluster.under(CLAIMS).items()
        assert one.session_id == session == pod["metadata"]["labels"][names.SESSION_LABEL]
        assert pod["spec"]["resourceClaims"] == [{"name": "gpuspawner", "resourceClaimName": session}]
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["claims"] == [{"name": "gpuspawner"}]
        env = {each["name"]: each.get("value") for each in container["env"]}
        assert env["GPUSPAWNER_SESSION"] == session
        assert "CUDA_VISIBLE_DEVICES" not in env
        assert claim["metadata"]["annotations"][names.USER] == "Ann Ö@x"
        assert await one.poll() is None
        await one.stop(now=True)
        assert name not in cluster.under(PODS)
        until(lambda: cluster.under(CLAIMS) == {})


async def test_a_server_without_a_card_has_no_claim_and_sees_none(cluster: FakeCluster, spawner: Made) -> None:
    one = spawner()
    with Answering(cluster):
        await start(one, share="1/2")
        await one.stop(now=True)
        await start(one, share="none")
        (pod,) = cluster.under(PODS).values()
        assert "resourceClaims" not in pod["spec"]
        (container,) = pod["spec"]["containers"]
        assert "claims" not in container["resources"]
        env = {each["name"]: each.get("value", "") for each in container["env"]}
        assert (env["CUDA_VISIBLE_DEVICES"], env["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")
        await one.stop(now=True)


async def test_a_refused_claim_is_placed_again_before_its_user_hears_of_it(cluster: FakeCluster, spawner: Made) -> None:
    one = spawner()
    with Answering(cluster, refusing=1):
        await start(one, share="1/4")
        (claim,) = cluster.under(CLAIMS).values()
        assert claim["metadata"]["name"] == one.session_id
        places = {
            each[3]["metadata"]["annotations"][names.CARDS] for each in cluster.history if each[1].startswith(CLAIMS)
        }
        assert places == {uuid("n1", 0), uuid("n1", 1)}, "once elsewhere"
        told = [step["message"] for step in one.steps.taken]
        assert any("another place is looked for" in message for message in told)
        await one.stop(now=True)


async def test_a_start_for_which_there_is_no_place_says_so_and_leaves_nothing(
    cluster: FakeCluster, spawner: Made
) -> None:
    one = spawner()
    with Answering(cluster, refusing=100):
        with pytest.raises(Refused) as refused:
            await start(one, share="1/8")
        assert refused.value.status_code == 409
        assert one.failure
        until(lambda: cluster.under(CLAIMS) == {} and cluster.under(PODS) == {})
        assert one.session_id == ""


async def test_a_cancelled_start_leaves_nothing(cluster: FakeCluster, spawner: Made) -> None:
    one = spawner()
    task = asyncio.ensure_future(start(one, share="1/4"))  # nobody schedules its pod
    await asyncio.to_thread(until, lambda: cluster.under(PODS))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with Answering(cluster):
        until(lambda: cluster.under(CLAIMS) == {} and cluster.under(PODS) == {})


async def test_a_pod_that_is_evicted_ends_the_session_and_the_next_start_works(
    cluster: FakeCluster, spawner: Made
) -> None:
    one = spawner()
    with Answering(cluster):
        await start(one, share="1")
        cluster.vanish(f"{PODS}/{one.pod_name}")
        for _ in range(200):
            if await one.poll() is not None:
                break
            await asyncio.sleep(0.05)
        assert one.session_id == ""
        until(lambda: cluster.under(CLAIMS) == {})
        await start(one, share="1")
        await one.stop(now=True)


async def test_another_pod_of_that_name_is_not_deleted(cluster: FakeCluster, spawner: Made) -> None:
    one = spawner()
    cluster.put(f"{PODS}/{one.pod_name}", {"metadata": {"labels": {"app": "somebody-elses"}}})
    with Answering(cluster), pytest.raises(Refused, match="another pod named"):
        await start(one, share="1/8")
    assert one.pod_name in cluster.under(PODS)
    until(lambda: cluster.under(CLAIMS) == {})


PROFILES = [
    {"display_name": "Small", "slug": "small", "default": True},
    {
        "display_name": "Large",
        "slug": "large",
        "kubespawner_override": {"environment": {"SIZE": "large"}, "mem_guarantee": "1G", "node_selector": {"a": "b"}},
        "profile_options": {
            "image": {"choices": {"two": {"display_name": "2", "kubespawner_override": {"image": "notebook:2"}}}}
        },
    },
]


async def test_profiles_work_and_leave_nothing_behind(cluster: FakeCluster, spawner: Made) -> None:
    one = spawner(profile_list=PROFILES)
    with Answering(cluster):
        await start(one, share="1/4", profile="large", image="two")
        (pod,) = cluster.under(PODS).values()
        (container,) = pod["spec"]["containers"]
        assert container["image"] == "notebook:2"
        assert container["resources"]["requests"]["memory"] == 1_073_741_824
        assert container["resources"]["claims"] == [{"name": "gpuspawner"}]
        assert {"name": "SIZE", "value": "large"} in container["env"]
        assert one.user_options == {"share": "1/4", "profile": "large", "image": "two"}
        await one.stop(now=True)
        await start(one, share="none", profile="small")
        (pod,) = cluster.under(PODS).values()
        (container,) = pod["spec"]["containers"]
        assert container["image"] == "notebook:1"
        assert "SIZE" not in {each["name"] for each in container["env"]}
        assert "nodeSelector" not in pod["spec"]
        await one.stop(now=True)
    with pytest.raises(Refused, match="small, large") as refused:
        await one.accept_options({"profile": "gone"})
    assert refused.value.status_code == 400


async def test_a_restarted_hub_knows_session_and_choice(cluster: FakeCluster, spawner: Made) -> None:
    one = spawner(profile_list=PROFILES)
    with Answering(cluster):
        await start(one, share="1/4", profile="large", image="two")
        other = spawner(profile_list=PROFILES)
        other.load_state(one.get_state())
        assert (other.session_id, other.choice) == (one.session_id, one.choice)
        assert await other.poll() is None
        await other.stop(now=True)
        until(lambda: cluster.under(CLAIMS) == {})


async def test_events_of_the_pod_are_steps_of_the_start(cluster: FakeCluster, spawner: Made) -> None:
    one = spawner()
    task = asyncio.ensure_future(start(one, share="1/4"))
    await asyncio.to_thread(until, lambda: cluster.under(PODS))
    event = {
        "involvedObject": {"kind": "Pod", "name": one.pod_name},
        "reason": "Pulling",
        "message": "Pulling image notebook:1",
        "type": "Normal",
        "lastTimestamp": "2030-01-01T00:00:00Z",
        "eventTime": None,
    }
    cluster.put(f"/api/v1/namespaces/{NAMESPACE}/events/one", event)
    await asyncio.to_thread(until, lambda: any("Pulling image" in step["message"] for step in one.steps.taken))
    with Answering(cluster):
        await task
        parts = [step["part"] for step in one.steps.taken]
        assert parts[0] == "place"
        assert parts[-1] == "server"
        await one.stop(now=True)
