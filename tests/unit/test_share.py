"""Shares and cards as values."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.card import GIB, Card, model_slug
from gpuspawner.service.tariff import Tariff
from gpuspawner.share import FRACTIONS, MAX_CARDS, GPUShare, ShareError, eighths_text

SHARES = st.builds(
    GPUShare,
    st.sampled_from([*FRACTIONS, *(8 * n for n in range(2, MAX_CARDS + 1))]),
    st.none() | st.from_regex(r"\A[a-z][a-z0-9]{0,6}(-[0-9]{2}gb)?\Z"),
)


@given(SHARES)
def test_text_round_trips(share: GPUShare) -> None:
    assert GPUShare.parse(str(share)) == share


@given(SHARES, st.integers(min_value=8, max_value=2**48))
def test_shares_of_a_card_never_exceed_it(share: GPUShare, card_bytes: int) -> None:
    per_card = share.memory_bytes(card_bytes)
    places = 8 // share.eighths_per_card
    assert per_card * places <= card_bytes < (per_card + 1) * places
    assert share.cards * share.eighths_per_card == share.eighths


@pytest.mark.parametrize(
    ("text", "eighths", "cards", "model"),
    [
        ("none", 0, 0, None),
        ("1/8", 1, 1, None),
        ("1/4", 2, 1, None),
        ("1/2", 4, 1, None),
        ("1", 8, 1, None),
        ("2", 16, 2, None),
        ("a100:1/4", 2, 1, "a100"),
        ("h100-80gb:8", 64, 8, "h100-80gb"),
    ],
)
def test_parse(text: str, eighths: int, cards: int, model: str | None) -> None:
    share = GPUShare.parse(text)
    assert (share.eighths, share.cards, share.model) == (eighths, cards, model)


BAD = [
    True, False, None, 0, 1, 0.5, float("nan"), float("inf"), [], ["1/8"], {"share": "1/8"}, b"1/8",
    "", " ", "1/8 ", " 1/8", "0", "-1/8", "+1/8", "1/3", "3/8", "9/8", "2/8", "1e999", "nan", "0.25", "01",
    "1/8\n", "1\u20448", "\u0661/8",
    "65", "999", "None", "1/4:a100", ":1/4", "a100:", "A100:1/4", "a100::1/4", "x" * 10_000_000, "1/0", "½",
]  # fmt: skip


@pytest.mark.parametrize("given_value", BAD, ids=lambda value: repr(value)[:20])
def test_malformed_shares_name_the_field_and_what_is_allowed(given_value: object) -> None:
    with pytest.raises(ShareError) as caught:
        GPUShare.parse(given_value, field="share")
    error = caught.value.as_dict()
    assert error["field"] == "share"
    assert "1/8, 1/4, 1/2" in error["allowed"]
    assert len(caught.value.message) < 400


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.lists(st.text())))
def test_any_input_is_a_share_or_a_share_error(value: object) -> None:
    try:
        share = GPUShare.parse(value)
    except ShareError:
        return
    assert str(share) == value


@pytest.mark.parametrize("eighths", [-1, 3, 5, 9, 8 * (MAX_CARDS + 1), True, 1.0, "1"])
def test_no_other_numbers_of_eighths(eighths: object) -> None:
    with pytest.raises(ShareError):
        GPUShare(eighths)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "gib", "slug"),
    [
        ("NVIDIA H100 80GB HBM3 (simulated)", 80, "h100-80gb"),
        ("NVIDIA A100-SXM4-40GB", 40, "a100-40gb"),
        ("NVIDIA H200", Fraction(1409, 10), "h200-141gb"),
        ("Tesla V100-SXM2-16GB", 16, "v100-16gb"),
        ("NVIDIA L4", Fraction(225, 10), "l4-24gb"),
        ("NVIDIA GeForce RTX 9999", 24, "geforce-rtx-9999"),
        ("", 1, "card"),
    ],
)
def test_model_slugs(name: str, gib: int | Fraction, slug: str) -> None:
    assert model_slug(name, int(gib * GIB)) == slug


def test_a_model_is_matched_by_slug_or_family() -> None:
    card = Card("GPU-0", 0, "NVIDIA A100-SXM4-80GB", 80 * GIB)
    assert [card.is_model(model) for model in (None, "a100", "a100-80gb", "a100-40gb", "a10", "h100")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_an_eighth_costs_a_quarter_of_a_card() -> None:
    tariff = Tariff(whole_card={"h100": 4_000_000}, default=1_000_000)
    assert tariff.price_micros(GPUShare(1), "h100-80gb") == 1_000_000
    assert tariff.price_micros(GPUShare(8), "h100-80gb") == 4_000_000
    assert tariff.price_micros(GPUShare(16), "h100-80gb") == 8_000_000
    assert tariff.price_micros(GPUShare(8), "unheard-of") == 1_000_000
    prices = [tariff.price_micros(GPUShare(eighths), "h100") for eighths in FRACTIONS]
    assert prices == sorted(prices)
    assert tariff.price(GPUShare(2), "h100") == "1.60"


def test_eighths_in_words() -> None:
    assert [eighths_text(n) for n in (0, 1, 3, 4, 8, 12)] == ["nothing", "1/8", "3/8", "1/2", "1", "3/2"]
