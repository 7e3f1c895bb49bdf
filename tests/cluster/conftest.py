"""The cluster that all tests in this folder share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import build
from support.cluster.cluster import VARIABLE, Cluster, OwnCluster, cluster, why_not

#: Building the programs takes a while the first time, before the first test.
BUILD_TIMEOUT = 3000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for the cluster, and where there is no build yet, for that."""
    here = Path(__file__).parent
    own = [item for item in items if here in item.path.parents]
    for item in own:
        item.add_marker(pytest.mark.cluster)
        if item is own[0] or item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUILD_TIMEOUT if item is own[0] else 300), append=False)


@pytest.fixture(scope="session")
def any_cluster() -> Iterator[Cluster]:
    """The cluster that GPUSPAWNER_TEST_KUBECONFIG names, or one of our own for the whole run."""
    given = os.environ.get(VARIABLE)
    if given:
        found = Cluster(Path(given))
        try:
            yield found
        finally:
            found.close()
        return
    reason = why_not()
    if reason:
        pytest.skip(reason)
    build.programs(["etcd", "kubernetes", "containerd"])
    with cluster() as made:
        yield made


@pytest.fixture(scope="session")
def own_cluster(any_cluster: Cluster) -> OwnCluster:
    """The same where it is our own, since the test reads files of the node or kills parts."""
    if not isinstance(any_cluster, OwnCluster):
        pytest.skip(f"needs a cluster of its own, and {VARIABLE} names another")
    return any_cluster


@pytest.fixture(autouse=True)
def mended(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test has killed and, failing, not started again runs again for the next one."""
    made = request.getfixturevalue("any_cluster") if "any_cluster" in request.fixturenames else None
    yield
    if isinstance(made, OwnCluster):
        made.mend()


@pytest.fixture
def namespace(any_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for one test."""
    name = request.node.name.replace("_", "-").replace("[", "-").rstrip("]").lower()
    with any_cluster.namespace(f"test-{name}"[:60].rstrip("-")) as made:
        yield made
