"""Where the service runs, from its environment."""

from pathlib import Path

import pytest

from gpuspawner.errors import InvalidInput
from gpuspawner.service.place import Place
from gpuspawner.state import Settings

SETTINGS = Settings(Path("/state"), 8000, "/")


def test_on_one_machine_nothing_needs_to_be_set() -> None:
    assert Place.from_env(SETTINGS, {}) == Place(
        "machine", "127.0.0.1", "http://127.0.0.1:8002/hub/api", Path("/state/secrets/service_token")
    )


def test_on_a_cluster_the_installation_has_a_name() -> None:
    env = {
        "GPUSPAWNER_FLEET": "kubernetes",
        "GPUSPAWNER_NAMESPACE": "lab",
        "GPUSPAWNER_INSTANCE": "gpu-1",
        "GPUSPAWNER_SERVICE_HOST": "::",
        "GPUSPAWNER_HUB_API": "http://hub:8081/hub/api/",
        "GPUSPAWNER_SERVICE_TOKEN_FILE": "/token",
    }
    assert Place.from_env(SETTINGS, env) == Place(
        "kubernetes", "::", "http://hub:8081/hub/api", Path("/token"), "lab", "gpu-1"
    )
    assert Place.from_env(SETTINGS, {**env, "GPUSPAWNER_INSTANCE": ""}).instance == "gpuspawner"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GPUSPAWNER_FLEET", "cloud"),
        ("GPUSPAWNER_SERVICE_HOST", "localhost"),
        ("GPUSPAWNER_HUB_API", "hub:8081"),
        ("GPUSPAWNER_NAMESPACE", "Lab"),
        ("GPUSPAWNER_INSTANCE", "a_b"),
    ],
)
def test_a_bad_value_is_named(name: str, value: str) -> None:
    env = {"GPUSPAWNER_FLEET": "kubernetes", "GPUSPAWNER_NAMESPACE": "lab", name: value}
    with pytest.raises(InvalidInput, match=name) as refused:
        Place.from_env(SETTINGS, env)
    assert (refused.value.field, refused.value.given) == (name, value)
