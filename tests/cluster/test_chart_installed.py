"""The chart on a real cluster, with its own images: installed, used, upgraded, rolled back and uninstalled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.act import chromium, fresh_page, the_act
from support.cluster import images
from support.cluster.cluster import OwnCluster
from support.cluster.helm import Helm, HelmError
from support.cluster.installed import Installed
from support.common import until
from support.hub import Hub, Kernel, User

pytestmark = pytest.mark.timeout(1800)

#: What the driver of an 80 GB H100 reports, simulated or not.
CARD = 85_520_809_984
GIB = 1 << 30
RELEASE, NAME = "gpu", "gpu-gpuspawner"
BY_HAND = {"storageClass": "-"}
VALUES: dict[str, Any] = {
    "image": {"pullPolicy": "Never"},
    "simulation": {"enabled": True, "cards": "2*h100-80gb"},
    "hub": {"storage": BY_HAND},
    "service": {"storage": BY_HAND},
    "session": {"storage": BY_HAND, "memory": {"guarantee": "256M"}, "startTimeout": 600, "httpTimeout": 600},
}
#: Changes the pods of hub, service and agent; nothing that people notice.
CHANGED = {
    **VALUES,
    **{
        part: {**VALUES.get(part, {}), "extraEnv": [{"name": "CHANGED", "value": "yes"}]}
        for part in ("hub", "service", "agent")
    },
}
WAIT = ("--wait", "--timeout", "15m")

_MEMORY = """
import pynvml
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total)
"""
_FILL = """
from cuda.bindings import driver
driver.cuInit(0)
_, context = driver.cuCtxCreate(None, 0, driver.cuDeviceGet(0)[1])
error, pointer = driver.cuMemAlloc({size})
print(int(error))
"""


@pytest.fixture(scope="module")
def volumes(own_cluster: OwnCluster) -> Iterator[None]:
    """Volumes made by hand, as a cluster without a storage class has them."""
    names = []
    for number in range(4):
        folder = own_cluster.host.folder / f"volume-{number}"
        folder.mkdir()
        folder.chmod(0o777)  # the kubelet does not hand over folders of the node to a pod's group
        names.append(f"chart-{number}")
        own_cluster.api.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": names[-1]},
                "spec": {
                    "capacity": {"storage": "10Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": {"path": str(folder)},
                },
            }
        )
    yield
    for name in names:
        own_cluster.api.delete("PersistentVolume", name)


@pytest.fixture(scope="module")
def helm(own_cluster: OwnCluster) -> Iterator[Helm]:
    made = Helm(own_cluster.kubeconfig)
    yield made
    made.close()


@pytest.fixture(scope="module")
def release(own_cluster: OwnCluster, helm: Helm, volumes: None) -> Iterator[Installed]:
    own_cluster.load(images.of_the_chart())
    with own_cluster.namespace("gpu") as namespace:
        made = Installed(own_cluster, namespace, NAME)
        try:
            notes = helm.install(RELEASE, namespace, VALUES, *WAIT)
        except HelmError as error:
            raise AssertionError(f"{error}\n{made.why()}") from error
        assert "simulated" in notes
        yield made


@pytest.fixture(scope="module")
def ann(release: Installed) -> Iterator[User]:
    user = Hub(release).user("ann")  # type: ignore[arg-type]
    yield user
    user.browser.close()  # nothing to stop: by then there is no hub


@pytest.fixture(scope="module")
def kernel(release: Installed, ann: User) -> Kernel:
    """A server with a quarter of a card, started by the form."""
    answer = ann.submit({"share": "1/4"})
    assert answer.status_code in (200, 302), answer.text[-3000:]
    until(lambda: ann.server().get("ready"), 600, release.why)
    made = ann.kernel()
    made("kept = 42", 300)
    return made


def session_pod(release: Installed, ann: User) -> dict[str, Any]:
    label = f"gpuspawner.io/session={ann.session()['id']}"
    (found,) = release.cluster.api.list("Pod", release.namespace, labelSelector=label)
    return found


def total(kernel: Kernel) -> int:
    return int(kernel(_MEMORY, 120))


def resize(release: Installed, ann: User, share: str) -> None:
    """By the person's own token, as the panel does it."""
    token = release.token("ann")
    url = f"{release.address('service', 8003)}/services/gpuspawner/api/v1/sessions/{ann.session()['id']}"

    def done() -> bool:
        answer = httpx.patch(url, json={"share": share}, headers={"Authorization": f"Bearer {token}"}, timeout=120)
        assert answer.status_code in (200, 503), answer.text  # 503: an agent that is just being replaced
        return answer.status_code == 200

    until(done, 300, "the resize")


def test_what_runs_is_what_was_asked_for(release: Installed) -> None:
    pods = release.pods()
    assert set(pods) == {"hub", "proxy", "service", "agent", "simulation"}
    devices = [
        device
        for each in release.cluster.api.list("ResourceSlice", fieldSelector="spec.driver=gpu.gpuspawner.io")
        for device in each["spec"]["devices"]
    ]
    assert [device["capacity"]["eighths"]["value"] for device in devices] == ["8", "8"]
    for part, pod in pods.items():
        said = release.cluster.kubectl(
            "--namespace", release.namespace, "exec", pod["metadata"]["name"], "--", "id", "-u"
        )
        assert said.strip() == ("0" if part in ("agent", "simulation") else "1000")


def test_a_server_has_its_share_and_keeps_to_it(release: Installed, ann: User, kernel: Kernel) -> None:
    assert total(kernel) == CARD // 4
    assert kernel(_FILL.format(size=30 * GIB), 120).strip() == "2"
    assert ann.session()["share"] == "1/4"
    pod = session_pod(release, ann)
    (claim,) = pod["spec"]["resourceClaims"]
    status = release.cluster.api.get("ResourceClaim", claim["resourceClaimName"], release.namespace)["status"]
    assert status["devices"][0]["data"]["eighths"] == 2


def test_it_grows_and_shrinks_while_the_kernel_runs(release: Installed, ann: User, kernel: Kernel) -> None:
    resize(release, ann, "1/2")
    assert total(kernel) == CARD // 2
    assert kernel(_FILL.format(size=30 * GIB), 120).strip() == "0"
    kernel("driver.cuMemFree(pointer)")
    resize(release, ann, "1/4")
    assert total(kernel) == CARD // 4
    assert kernel("print(kept)").strip() == "42"


def test_the_home_is_a_volume_with_the_tour_in_it(release: Installed, kernel: Kernel) -> None:
    said = kernel("import os; print(os.getcwd(), os.path.exists('tour.ipynb'), os.getuid())")
    assert said.split() == ["/home/jovyan", "True", "1000"]


def test_a_session_has_no_rights_in_the_cluster(kernel: Kernel) -> None:
    assert kernel("import os; print(os.path.exists('/var/run/secrets/kubernetes.io'))").strip() == "False"
    assert kernel("print(open('/proc/self/status').read().split('CapBnd:')[1].split()[0])").strip() == "0" * 16
    assert kernel("print(open('/proc/self/status').read().split('Seccomp:')[1].split()[0])").strip() == "2"


def test_the_whole_act_in_a_browser(release: Installed, tmp_path: Path) -> None:
    with Hub(release).user("eva") as eva, chromium() as browser, fresh_page(browser) as page:  # type: ignore[arg-type]
        the_act(page, release, "eva", tmp_path, start_seconds=600)
        eva.stop()


def replaced(release: Installed, before: dict[str, dict[str, Any]]) -> set[str]:
    now = release.pods()
    return {part for part, pod in now.items() if pod["metadata"]["uid"] != before[part]["metadata"]["uid"]}


def untouched(release: Installed, ann: User, kernel: Kernel, pod: dict[str, Any]) -> None:
    """The same pod, the same kernel, and a share that can be changed."""
    now = session_pod(release, ann)
    assert now["metadata"]["uid"] == pod["metadata"]["uid"]
    assert [each["restartCount"] for each in now["status"]["containerStatuses"]] == [0]
    until(kernel.answers, 120, "the proxy to know its routes")
    assert kernel("print(kept)").strip() == "42"
    for share, eighths in (("1/2", 4), ("1/4", 2)):
        resize(release, ann, share)
        assert total(kernel) == CARD * eighths // 8


def test_an_upgrade_of_hub_service_and_agent_touches_no_session(
    release: Installed, helm: Helm, ann: User, kernel: Kernel
) -> None:
    pod, before, secret = session_pod(release, ann), release.pods(), release.secret("service_token")
    helm.upgrade(RELEASE, release.namespace, CHANGED, *WAIT)
    assert replaced(release, before) == {"hub", "service", "agent"}
    assert release.secret("service_token") == secret
    untouched(release, ann, kernel, pod)


def test_a_rollback_touches_none_either(release: Installed, helm: Helm, ann: User, kernel: Kernel) -> None:
    pod, before = session_pod(release, ann), release.pods()
    helm("rollback", RELEASE, "1", "--namespace", release.namespace, *WAIT)
    assert replaced(release, before) == {"hub", "service", "agent"}
    untouched(release, ann, kernel, pod)


def test_uninstalling_leaves_nothing_but_homes(release: Installed, helm: Helm, ann: User, kernel: Kernel) -> None:
    """While a server runs."""
    api, namespace = release.cluster.api, release.namespace
    assert session_pod(release, ann)
    helm("uninstall", RELEASE, "--namespace", namespace, *WAIT)
    until(lambda: not api.list("Pod", namespace), 120, "the pods to go")
    assert not api.list("ResourceClaim", namespace)
    until(
        lambda: not api.list("ResourceSlice", fieldSelector="spec.driver=gpu.gpuspawner.io"),
        120,
        "the kubelet to remove the slices of a driver that is gone",
    )
    words = (
        "deployments,daemonsets,jobs,services,secrets,configmaps,networkpolicies,roles,rolebindings,serviceaccounts,pvc"
    )
    left = release.cluster.kubectl("--namespace", namespace, "get", words, "--output", "name").split()
    own = [each for each in left if each not in ("configmap/kube-root-ca.crt", "serviceaccount/default")]
    assert sorted(own) == [f"persistentvolumeclaim/gpu-gpuspawner-{user}" for user in ("ann", "eva")]
    words = "deviceclasses,priorityclasses,clusterroles,clusterrolebindings,"
    words += "validatingadmissionpolicies,validatingadmissionpolicybindings"
    left = release.cluster.kubectl("get", words, "--output", "name").split()
    assert not [each for each in left if NAME in each]
    assert api.find("DeviceClass", "gpuspawner") is None
