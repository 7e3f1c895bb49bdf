"""Names on Kubernetes are the same on both sides, and ones that an API server takes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.kubernetes_names import device_name, whole_number

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def test_a_uuid_in_lower_case_is_the_name() -> None:
    assert device_name("GPU-8E2A0C5E-0000-4000-8000-000000000001") == "gpu-8e2a0c5e-0000-4000-8000-000000000001"


@given(st.text(max_size=200))
def test_any_uuid_gives_a_dns_label(uuid: str) -> None:
    name = device_name(uuid)
    assert len(name) <= 63
    assert DNS_LABEL.fullmatch(name)


@pytest.mark.parametrize(("one", "other"), [("MIG GPU/1", "MIG-GPU-1"), ("a_b", "a.b"), ("x" * 64, "x" * 65)])
def test_two_cards_never_share_a_name(one: str, other: str) -> None:
    assert device_name(one) != device_name(other)


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("1", 1), ("8", 8), ("999999999", 999_999_999)])
def test_a_whole_number(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", [None, "", " 1", "1\n", "01", "-1", "+1", "1.0", "1e1", "²", "1000000000", "one"])
def test_anything_else_is_none(text: str | None) -> None:
    assert whole_number(text) is None
