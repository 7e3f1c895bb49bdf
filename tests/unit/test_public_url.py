"""The public address behind a reverse proxy."""

import pytest

from gpuspawner.errors import InvalidInput
from gpuspawner.state import Settings, public_url


def read(url: str, base: str = "/gpu/") -> str | None:
    env = {"GPUSPAWNER_BASE_URL": base, "GPUSPAWNER_PUBLIC_URL": url}
    return public_url(Settings.from_env(env), env)


def test_it_ends_in_a_slash_and_may_be_left_out() -> None:
    assert read("") is None
    assert read("https://gpu.example.org/gpu") == "https://gpu.example.org/gpu/"
    assert read("https://gpu.example.org:8443", "/") == "https://gpu.example.org:8443/"


@pytest.mark.parametrize("url", ["gpu.example.org/gpu/", "ftp://x/gpu/", "https:///gpu/", "https://gpu.example.org/"])
def test_what_cannot_be_it_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"^GPUSPAWNER_PUBLIC_URL: .* Allowed: https://HOST/gpu/"):
        read(url)
