"""The form, from the service's answer to HTML."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from gpuspawner.share import GPUShare
from gpuspawner.spawner.environments import Environment
from gpuspawner.spawner.form import Link, failure, merged, preselected, render
from gpuspawner.spawner.options import Choice, read_link
from gpuspawner.spawner.words import wait_words

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
        self.options: dict[str, dict[str, str | None]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag == "input" and given["name"] == "share":
            assert given["type"] == "radio"
            self.found[str(given["value"])] = given
        if tag == "option":
            self.options[str(given["value"])] = given


KINDS = [{"name": name, "default": name == "interactive"} for name in ("interactive", "training", "batch")]


def test_the_class_of_work_is_chosen_where_there_is_a_queue() -> None:
    def page(chosen: Choice, *, waits: bool = True) -> tuple[str, Inputs]:
        html = render(answer(offer("1/4"), kinds=KINDS), chosen, waits=waits)
        return html, Inputs(html)

    html, plain = page(Choice())
    assert "selected" in plain.options["interactive"]
    assert "selected" not in plain.options["training"]
    assert '<details class="gpu-more" id="gpu-more">' in html, "nobody has to look at it"
    html, chosen = page(Choice(kind="batch", run_seconds=5400, deadline="2030-12-24T18:00:00+00:00"))
    assert "selected" in chosen.options["batch"]
    values = {given.get("name"): given.get("value") for tag, given in chosen.tags if tag == "input"}
    assert values["run_hours"] == "1.5"
    assert values["deadline"] == datetime(2030, 12, 24, 18, tzinfo=UTC).astimezone().strftime("%Y-%m-%dT%H:%M")
    assert '<details class="gpu-more" id="gpu-more" open>' in html
    assert "inference-urgent" not in page(Choice(kind="inference-urgent"))[1].options, "only what the policy gives"
    assert "gpu-kind" not in page(Choice(), waits=False)[0]


def test_the_class_is_remembered_and_not_how_long_it_ran() -> None:
    last = Choice(kind="training", run_seconds=60, deadline="2030-12-24T18:00:00+00:00")
    assert merged(last, Choice()) == Choice(kind="training")


@pytest.mark.case("hub-9")
def test_what_is_free_can_be_chosen_and_what_is_taken_says_why() -> None:
    html = render(answer(offer("1/8", free=3), offer("1/4"), offer("1", free=0)), Choice())
    inputs = Inputs(html).found
    assert list(inputs) == [f"{H100}:1/8", f"{H100}:1/4", f"{H100}:1", "none"]
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
    found = Inputs(html).found
    assert "disabled" not in found.pop("none")
    assert all("disabled" in given for given in found.values())
    assert not any("checked" in given for given in Inputs(html).found.values()), "nobody starts without a card unasked"


def test_a_service_that_is_down_gives_a_sentence_and_no_inputs() -> None:
    html = render({}, Choice(), problem="The GPU service does not answer.")
    assert "The GPU service does not answer." in html
    assert not Inputs(html).found


def test_models_are_told_apart() -> None:
    html = render(answer(offer("1/4"), offer("1/4", "v100-32gb")), Choice())
    assert list(Inputs(html).found) == [f"{H100}:1/4", "v100-32gb:1/4", "none"]
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


def test_several_cards_are_a_list_and_not_a_wall_of_choices() -> None:
    html = render(answer(offer("1"), offer("2"), offer("3", free=0)), Choice(GPUShare(16, H100)))
    found = Inputs(html)
    assert list(found.found) == [f"{H100}:1", "none"]
    assert list(found.options) == ["", f"{H100}:2", f"{H100}:3"]
    assert "selected" in found.options[f"{H100}:2"]
    assert "disabled" in found.options[f"{H100}:3"]


def test_no_card_is_chosen_again_and_can_be_left_out() -> None:
    assert "checked" in Inputs(render(answer(offer("1/4")), Choice(GPUShare(0)))).found["none"]
    assert "none" not in Inputs(render(answer(offer("1/4")), Choice(), no_card=False)).found


def test_a_link_chooses_beforehand_and_says_what_cannot_be_chosen() -> None:
    offers = answer(offer("1/4"), offer("1/2"), offer("1", free=0))
    choice, notices = read_link({"share": [b"1/2"], "model": [H100.encode()], "environment": [b"gone"]})
    html = render(offers, choice, link=Link(choice, notices))
    assert "checked" in Inputs(html).found[f"{H100}:1/2"]
    assert "The link asks for the environment" in html
    for query, said in [
        ({"share": [b"1/3"]}, "share:"),
        ({"share": [b"1/4"], "model": [b"v900"]}, "which is not offered here"),
        ({"share": [b"1"]}, "Every card is in use."),
        ({"share": [b"\xff\xfe"]}, "share:"),
        ({"color": [b"red"]}, "unknown key"),
        ({"burst": [b"maybe"]}, "burst:"),
        ({"card": [b"GPU-1"]}, "cannot be chosen here"),
        ({"model": [b"h100"]}, "only together with a share"),
    ]:
        choice, notices = read_link(query)
        html = render(offers, choice, link=Link(choice, notices))
        assert 'class="alert alert-warning gpu-notice"' in html
        assert said in html
        assert "checked" in Inputs(html).found[f"{H100}:1/4"], "the default"
    assert read_link({"next": [b"/x"], "_xsrf": [b"y"], "opt-share": [b"1/8"]}) == (Choice(GPUShare(1)), [])


def test_a_link_and_the_last_choice_are_merged() -> None:
    last = Choice(GPUShare(2, H100), environment="torch", burst=True, card="GPU-1")
    assert merged(last, Choice(GPUShare(4))) == Choice(GPUShare(4), "torch", True, None)
    assert merged(last, Choice(environment="other")) == Choice(GPUShare(2, H100), "other", True, "GPU-1")
    assert merged(last, Choice(burst=False)).burst is False


def test_environments_and_cards_that_may_be_chosen() -> None:
    environments = [
        Environment("one", "One", ("/bin/true",)),
        Environment("two", "<Two>", ("/bin/true",), "The second."),
    ]
    cards = [{"uuid": f"GPU-{n}", "index": n, "name": "H100", "model": H100, "free_eighths": 8 * n} for n in (0, 1)]
    html = render(answer(offer("1/4"), cards=cards), Choice(environment="two", card="GPU-1"), environments=environments)
    radios = {given["value"]: given for tag, given in Inputs(html).tags if given.get("name") == "environment"}
    assert list(radios) == ["one", "two"]
    assert "checked" in radios["two"]
    assert "<Two>" not in html
    options = Inputs(html).options
    assert "disabled" in options["GPU-0"]
    assert "selected" in options["GPU-1"]
    plain = render(answer(offer("1/4")), Choice(environment="gone"))
    names = {given.get("name") for _, given in Inputs(plain).tags}
    assert not names & {"environment", "card", "burst"}


@pytest.mark.parametrize(
    ("low", "high", "waited", "said"),
    [
        (None, None, 0, "For how long is not known."),
        (0, 0, 0, "Probably about a minute."),
        (540, 600, 0, "Probably about 10 minutes."),
        (30, 600, 0, "Probably up to 10 minutes."),
        (600, 1800, 0, "Probably 10 minutes to 30 minutes."),
        (600, 1800, 600, "Probably up to 20 minutes."),
        (600, 1800, 1801, "For how long is not known."),
        (600, 9000, 0, "Probably 10 minutes to 2.5 hours."),
    ],
)
def test_a_wait_is_told_as_far_as_it_is_known(low: int | None, high: int | None, waited: int, said: str) -> None:
    assert wait_words({"expected_low_seconds": low, "expected_high_seconds": high}, waited) == said


def test_what_is_taken_can_be_chosen_and_waited_for_where_the_service_says_so() -> None:
    taken = answer(offer("1/4", free=0, can_wait=True), offer("1/2", free=0, can_wait=False))
    with_queue = render(taken, Choice(), waits=True)
    quarter, half = (with_queue.partition(f'id="share-h100-80gb-{n}"')[2].partition(">")[0] for n in (2, 4))
    assert "disabled" not in quarter
    assert "data-waits" in quarter
    assert "disabled" in half
    assert "You would wait. For how long is not known." in with_queue
    assert '<input type="hidden" name="wait" value="on">' in with_queue
    without = render(taken, Choice())
    assert 'name="wait"' not in without
    assert "You would wait" not in without


def test_a_failure_says_what_happened_what_was_undone_and_what_to_do() -> None:
    said = failure("The server ended.", "ended", True, ("<b>boom</b>",))
    html = render(answer(offer("1/4")), Choice(), failure=said)
    for words in ("The server ended.", "its share of the card was given back", "last lines", "&lt;b&gt;boom&lt;/b&gt;"):
        assert words in html
    assert "nothing is charged" in failure("No.", "no_room", False, ()).undone


def test_what_is_said_of_limits_is_the_weakest_grade_of_the_offers() -> None:
    strong, weak = offer("1/8", grade="kernel"), offer("1/4", grade="guarded")
    assert "The driver or the card itself holds" in render(answer(strong), Choice())
    assert "Programs are held to the memory" in render(answer(strong, weak), Choice())
    assert "play by the rules" in render(answer(grade="advisory"), Choice())
