"""The form, from the service's answer to HTML."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from gpuspawner.share import GPUShare
from gpuspawner.spawner.form import preselected, render
from gpuspawner.spawner.options import Choice

GIB = 2**30
H100 = "h100-80gb"


def offer(share: str, model: str = H100, free: int = 1, **more: Any) -> dict[str, Any]:
    eighths = GPUShare.parse(share).eighths
    return {
        "share": share,
        "model": model,
        "model_name": f"NVIDIA {model}",
        "eighths": eighths,
        "cards": max(1, eighths // 8),
        "memory_bytes": 10 * GIB * min(eighths, 8),
        "price_per_hour": "0.63",
        "available": free > 0,
        "free_places": free,
        "reason": None if free else "Every card is in use.",
        "default": share == "1/4",
        **more,
    }


def answer(*offers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"simulated": False, "grade": "guarded", "currency": "EUR", "offers": list(offers), **more}


class Inputs(HTMLParser):
    """The radio inputs of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: dict[str, dict[str, str | None]] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "input":
            assert given["type"] == "radio"
            assert given["name"] == "share"
            self.found[str(given["value"])] = given


@pytest.mark.case("hub-9")
def test_what_is_free_can_be_chosen_and_what_is_taken_says_why() -> None:
    html = render(answer(offer("1/8", free=3), offer("1/4"), offer("1", free=0)), Choice())
    inputs = Inputs(html).found
    assert list(inputs) == [f"{H100}:1/8", f"{H100}:1/4", f"{H100}:1"]
    assert [name for name, given in inputs.items() if "disabled" in given] == [f"{H100}:1"]
    assert [name for name, given in inputs.items() if "checked" in given] == [f"{H100}:1/4"]
    assert "Every card is in use." in html
    for text in ("10 GiB", "20 GiB", "80 GiB", "0.63 EUR per hour", "3 free", "only one left"):
        assert text in html


def test_the_last_choice_is_chosen_again_while_it_is_free() -> None:
    offers = [offer("1/8"), offer("1/4"), offer("1/2")]
    last = Choice(GPUShare(4))
    assert preselected(offers, last, "1/4") == f"{H100}:1/2"
    offers[2] = offer("1/2", free=0)
    assert preselected(offers, last, "1/4") == f"{H100}:1/4"
    offers[1] = offer("1/4", free=0)
    assert preselected(offers, last, "1/4") == f"{H100}:1/8"
    assert preselected([offer("1/8", free=0)], last, "1/4") is None


@pytest.mark.case("hub-2")
def test_a_last_choice_of_a_model_that_is_gone_gives_the_default() -> None:
    offers = [offer("1/4", "a100-80gb"), offer("1/2", "a100-80gb")]
    assert preselected(offers, Choice(GPUShare(4, "v100-32gb")), "1/4") == "a100-80gb:1/4"


def test_nothing_free_is_said_and_not_offered() -> None:
    html = render(answer(offer("1/8", free=0), offer("1/4", free=0)), Choice())
    assert 'id="gpu-full"' in html
    assert all("disabled" in given for given in Inputs(html).found.values())


def test_a_service_that_is_down_gives_a_sentence_and_no_inputs() -> None:
    html = render({}, Choice(), problem="The GPU service does not answer.")
    assert "The GPU service does not answer." in html
    assert not Inputs(html).found


def test_models_are_told_apart() -> None:
    html = render(answer(offer("1/4"), offer("1/4", "v100-32gb")), Choice())
    assert list(Inputs(html).found) == [f"{H100}:1/4", "v100-32gb:1/4"]
    assert "NVIDIA v100-32gb" in html


def test_simulated_cards_are_labelled() -> None:
    assert "Simulated cards" in render(answer(offer("1/4"), simulated=True), Choice())
    assert "Simulated cards" not in render(answer(offer("1/4")), Choice())


def test_an_unknown_price_is_not_shown_as_nothing() -> None:
    html = render(answer(offer("1/4", price_per_hour=None)), Choice())
    assert "price unknown" in html
    assert "None" not in html


def test_what_the_service_says_is_text() -> None:
    html = render(answer(offer("1/4", model_name="<script>alert(1)</script>")), Choice())
    assert "<script>alert" not in html
