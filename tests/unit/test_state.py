"""Settings from the environment."""

import sys
from pathlib import Path

import pytest

from gpuspawner.errors import InvalidInput
from gpuspawner.state import Settings


@pytest.mark.parametrize(
    ("given", "base_url"), [("", "/"), ("/", "/"), ("gpu", "/gpu/"), ("/lab/gpu-1/", "/lab/gpu-1/")]
)
def test_base_urls(given: str, base_url: str) -> None:
    assert Settings.from_env({"GPUSPAWNER_BASE_URL": given, "HOME": "/x"}).base_url == base_url


@pytest.mark.parametrize("given", ["a b", "//x", "http://x/", "/%2e/", "/ü/", "a?b", "/x\n"])
def test_a_base_url_that_is_no_path_is_refused_by_name(given: str) -> None:
    with pytest.raises(InvalidInput, match="GPUSPAWNER_BASE_URL") as caught:
        Settings.from_env({"GPUSPAWNER_BASE_URL": given})
    assert caught.value.field == "GPUSPAWNER_BASE_URL"


@pytest.mark.parametrize("given", ["80", "abc", "65533", "1e4", "-1", "9" * 50, "0102400000000"])
def test_a_port_out_of_range_is_refused_by_name(given: str) -> None:
    with pytest.raises(InvalidInput, match="GPUSPAWNER_PORT"):
        Settings.from_env({"GPUSPAWNER_PORT": given})


def test_the_environment_with_pytorch_is_offered_where_it_is() -> None:
    assert Settings.from_env({"HOME": "/x"}).runtime is None
    assert Settings.from_env({"HOME": "/x", "GPUSPAWNER_RUNTIME": sys.prefix}).runtime == Path(sys.prefix)


@pytest.mark.parametrize("given", ["venv", "/no/such/place", "/"])
def test_what_is_no_environment_is_refused_by_name(given: str) -> None:
    with pytest.raises(InvalidInput, match="GPUSPAWNER_RUNTIME") as caught:
        Settings.from_env({"GPUSPAWNER_RUNTIME": given})
    assert caught.value.field == "GPUSPAWNER_RUNTIME"
