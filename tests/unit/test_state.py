"""Settings from the environment."""

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
