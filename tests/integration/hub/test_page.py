"""The page about cards on a real hub: signing in, what counts as signed in, and signing out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.common import until
from support.stack import Browser, Stack, stack

pytestmark = [pytest.mark.hub]
PAGE = "/services/gpuspawner/"
API = f"{PAGE}api/v1"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with stack(tmp_path_factory.mktemp("hub")) as made:
        yield made


def opened(browser: Browser) -> dict[str, str]:
    """The page after its sign-in; the header with which its program asks."""
    for name in [each.name for each in browser.cookies.jar if each.path == PAGE]:
        browser.cookies.delete(name)
    answer = browser.get(f"{PAGE}login", follow_redirects=True)
    assert answer.status_code == 200, answer.text
    assert str(answer.url).endswith(PAGE), answer.url
    found = re.search(r'data-xsrf="([0-9a-f]{64})"', answer.text)
    assert found, answer.text
    return {"X-XSRFToken": found[1]}


def first_events(browser: Browser, headers: dict[str, str]) -> dict[str, Any]:
    """The events of a stream up to `ready`, by kind; of parts the last."""
    found: dict[str, Any] = {}
    kind = ""
    with browser.stream("GET", f"{API}/panel/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                found[kind] = json.loads(line[6:])
                if kind == "ready":
                    return found
    raise AssertionError(found)


def test_the_page_is_in_the_navigation_and_signs_in(hub: Stack) -> None:
    with hub.browser("ann") as ann:
        home = ann.get("/hub/home").text
        assert re.search(rf'href="{PAGE}"[^>]*>GPU cards<', home), home
        headers = opened(ann)
        seen = first_events(ann, headers)
        assert seen["hello"] == {"user": "ann", "admin": False, "all": False}
        cookie = next(each for each in ann.cookies.jar if each.name == "gpuspawner-page")
        assert cookie.path == PAGE
        assert cookie.has_nonstandard_attr("HttpOnly")
    with hub.browser("admin") as admin:
        seen = first_events(admin, opened(admin))
        assert seen["hello"]["admin"] is True
        cards = seen["part"]["cards"]
        assert [(card["simulated"], card["health"], card["held"]) for card in cards] == [(True, "ok", 0)] * 2
        assert all(isinstance(card["temperature"], int) and card["power"] > 0 for card in cards)
        assert [card["memory_used"] for card in cards] == [0, 0]


def test_the_cookie_alone_counts_for_nothing(hub: Stack) -> None:
    """What another site can make a browser send."""
    with hub.browser("admin") as admin, hub.browser("ann") as ann:
        headers, others = opened(admin), opened(ann)
        body = {"kind": "node", "name": "this machine", "reason": "test"}
        for wrong in ({}, {"X-XSRFToken": "0" * 64}, others):
            assert admin.post(f"{API}/cordons", json=body, headers=wrong).status_code == 401
            assert admin.get(f"{API}/cordons", headers=wrong).status_code == 401
        assert ann.post(f"{API}/cordons", json=body, headers=others).status_code == 403
        made = admin.post(f"{API}/cordons", json=body, headers=headers)
        assert (made.status_code, made.json()["name"], made.json()["by"]) == (201, "this machine", "admin")
        lifted = admin.post(f"{API}/cordons/lift", json=body | {}, headers=headers)
        assert lifted.status_code == 422, "a lift has no reason in its body"
        body.pop("reason")
        why = {**headers, "X-GPUSpawner-Reason": "UTF-8''L%C3%BCfter%20ersetzt"}
        assert admin.post(f"{API}/cordons/lift", json=body, headers=why).status_code == 200
        written = ("POST /cordons/lift", "Lüfter ersetzt", "admin")

        def newest() -> bool:  # the audit is written when the answer is on its way already
            row = admin.get(f"{API}/audit", headers=headers).json()["entries"][0]
            return (row["action"], row["why"], row["actor"]) == written

        until(newest, 20, "the audit to have it")


def test_a_page_that_a_program_fetches_has_no_proof_in_it(hub: Stack) -> None:
    with hub.browser("admin") as admin:
        opened(admin)
        fetched = admin.get(PAGE, headers={"Sec-Fetch-Dest": "empty", "Sec-Fetch-Mode": "cors"})
        assert "data-xsrf" not in fetched.text
        assert "frame-ancestors 'none'" in fetched.headers["content-security-policy"]


def test_a_sign_in_that_somebody_else_began_is_refused(hub: Stack) -> None:
    with hub.browser("ann") as ann, httpx.Client(base_url=hub.url) as stranger:
        begun = ann.get(f"{PAGE}login")
        back = ann.get(begun.headers["location"])  # from the hub, with a code
        assert "/oauth_callback?" in back.headers["location"]
        refused = stranger.get(back.headers["location"])
        assert refused.status_code == 403
        assert "set-cookie" not in refused.headers
        assert "begun elsewhere" in refused.text
        wrong = re.sub("state=[^&]*", "state=x", back.headers["location"])
        assert ann.get(wrong).status_code == 403


def test_signing_out_at_the_hub_ends_it(hub: Stack) -> None:
    with hub.browser("bob") as bob:
        headers = opened(bob)
        kept = {each.name: each.value or "" for each in bob.cookies.jar if each.path == PAGE}
        bob.get("/hub/logout")
        bob.cookies.update(kept)  # as somebody who has copied them
        until(lambda: bob.get(f"{API}/sessions", headers=headers).status_code == 401, 60, "the sign-in to end")
