"""What may be asked for when a server starts, and what is refused."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.errors import GPUSpawnerError
from gpuspawner.share import GPUShare
from gpuspawner.spawner.options import Choice, options_from_form, read_link, read_options


@pytest.mark.case("hub-5")
@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({}, None),
        ({"share": None, "model": None}, None),
        ({"profile": "GPU 1/4 · H100 80 GB"}, None),
        ({"share": "1/8"}, GPUShare(1)),
        ({"share": "2"}, GPUShare(16)),
        ({"share": "1/4", "model": "h100-80gb"}, GPUShare(2, "h100-80gb")),
        ({"share": "a100-80gb:1/2"}, GPUShare(4, "a100-80gb")),
        ({"share": "a100-80gb:1/2", "model": "a100-80gb"}, GPUShare(4, "a100-80gb")),
        ({"share": "none"}, GPUShare(0)),
        ({"share": "1", "environment": "torch-2", "burst": True, "card": "GPU-1"}, GPUShare(8)),
    ],
)
def test_what_is_accepted(options: dict[str, Any], share: GPUShare | None) -> None:
    assert read_options(options).share == share


@pytest.mark.parametrize(
    ("options", "field"),
    [
        *(
            ({"share": given}, "share")
            for given in [True, 1, 0.25, math.nan, math.inf, "1/3", "-1/8", "9/8", "1e999", "", " ", "1/4\n", ["1/4"]]
        ),
        ({"share": "x" * 10_000_000}, "share"),
        ({"share": {"1/4": 1}}, "share"),
        ({"share": "1/4", "model": "H100"}, "model"),
        ({"share": "1/4", "model": "%d"}, "model"),
        ({"share": "1/4", "model": 1}, "model"),
        ({"share": "a100:1/4", "model": "h100"}, "model"),
        ({"model": "h100"}, "model"),
        ({"share": "none", "model": "h100"}, "model"),
        ({"share": "none", "burst": True}, "burst"),
        ({"share": "none", "card": "GPU-1"}, "card"),
        *(({"burst": given}, "burst") for given in [1, 0, "on", math.nan, []]),
        *(({"environment": given}, "environment") for given in [True, "", "A", "a\n", "../x", "x" * 41, ["a"]]),
        *(({"card": given}, "card") for given in [1, "", "GPU 1", "x" * 97, {}]),
        *(({"kind": given}, "kind") for given in [1, "", "Training", "a" * 40, "x\n", []]),
        *(({"run_seconds": given}, "run_seconds") for given in [True, 0, -1, "60", math.nan, math.inf, 1e9]),
        *(({"deadline": given}, "deadline") for given in [1, "", "soon", "2026-12-24", "2026-12-24T18:00", "9" * 50]),
        ({"profile": 1}, "profile"),
        ({"profile": "x" * 201}, "profile"),
        ({"shares": "1/4"}, "shares"),
        ({"share": "1/4", "y" * 10_000_000: 1}, "y"),
        ([], "user_options"),
        ("1/4", "user_options"),
        (None, "user_options"),
    ],
)
def test_what_is_refused_in_one_sentence_that_names_the_field(options: Any, field: str) -> None:
    with pytest.raises(GPUSpawnerError) as refused:
        read_options(options)
    message = refused.value.message
    assert message.startswith(field)
    assert "llowed: " in message
    assert "\n" not in message
    assert len(message) < 400


def test_what_the_queue_is_told_by_the_form_is_in_seconds_and_with_an_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        sent = {"share": ["1/2"], "kind": ["batch"], "run_hours": ["1.5"], "deadline": ["2026-12-24T18:00"]}
        choice = read_options(options_from_form(sent))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert (choice.kind, choice.run_seconds, choice.deadline) == ("batch", 5400.0, "2026-12-24T18:00:00+01:00")
    assert read_options(choice.options) == choice, "as JupyterHub stores it"
    assert Choice(deadline="2999-01-01T00:00:00+00:00").to_come == "2999-01-01T00:00:00+00:00"
    assert Choice(deadline="2026-01-01T00:00:00+00:00").to_come is None, "started anew with what was chosen before"
    for field, text in (("run_hours", "long"), ("run_hours", "nan"), ("deadline", "tomorrow")):
        with pytest.raises(GPUSpawnerError, match=r"run_seconds|deadline"):
            read_options(options_from_form({"share": ["1/2"], field: [text]}))


@given(
    st.dictionaries(
        st.sampled_from(["share", "model", "environment", "burst", "card", "profile", "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
            max_leaves=4,
        ),
    )
)
def test_anything_is_either_accepted_or_refused_in_words(options: dict[str, Any]) -> None:
    try:
        choice = read_options(options)
    except GPUSpawnerError:
        return
    # what was accepted is stored, and accepted again at the next start
    assert read_options(choice.options) == choice


def test_the_form_sends_the_model_with_the_share() -> None:
    sent = {"share": ["h100-80gb:1/4"], "_xsrf": ["token"]}
    assert options_from_form(sent) == {"share": "1/4", "model": "h100-80gb"}
    assert read_options(options_from_form(sent)) == Choice(GPUShare(2, "h100-80gb"))


@pytest.mark.case("hub-4")
def test_of_a_field_sent_twice_the_newest_counts() -> None:
    sent = {"share": ["1/4", "1/2"], "burst": ["off", "on"], "environment": ["one", "two"]}
    assert read_options(options_from_form(sent)) == Choice(GPUShare(4), "two", True)
    with pytest.raises(GPUSpawnerError, match="share"):
        read_options({"share": ["1/4", "1/2"]})


def test_several_cards_go_before_the_share_beside_them() -> None:
    sent = {"share": ["h100-80gb:1/4"], "several": ["h100-80gb:2"], "burst": ["off"], "card": [""]}
    assert read_options(options_from_form(sent)) == Choice(GPUShare(16, "h100-80gb"), burst=False)
    sent["several"] = [""]
    assert read_options(options_from_form(sent)).share == GPUShare(2, "h100-80gb")


def test_what_is_ticked_about_a_card_says_nothing_without_one() -> None:
    sent = {"share": ["none"], "burst": ["off", "on"], "card": ["GPU-1"]}
    assert options_from_form(sent) == {"share": "none"}


@given(st.dictionaries(st.text(max_size=8), st.lists(st.text(max_size=8), max_size=3), max_size=5))
def test_any_form_is_read_or_refused_in_words(form: dict[str, list[str]]) -> None:
    with contextlib.suppress(GPUSpawnerError):
        read_options(options_from_form(form))
    choice, notices = read_link({key: [value.encode() for value in values] for key, values in form.items()})
    assert read_options(choice.options) == choice
    assert all(notice.strip() for notice in notices)
