"""Starting servers: the form, the API, what may be asked for, and what is refused."""

from __future__ import annotations

import os
import re
import signal
from contextlib import closing
from typing import Any

import pytest
from support.common import until
from support.hub import Hub
from support.machine import CUDA

from gpuspawner.node.limits.processes import read_alive

GIB = 1 << 30

pytestmark = [pytest.mark.hub, pytest.mark.timeout(300)]


def chosen(page: str) -> str:
    """The share that the form chooses beforehand."""
    found = re.search(r'<input type="radio" name="share"[^>]*value="([^"]+)"[^>]* checked', page)
    assert found
    return found[1]


@pytest.mark.versions
@pytest.mark.case("hub-6")
def test_the_form_offers_what_is_free_and_starts_it(hub: Hub) -> None:
    with hub.user("ann") as ann:
        page = ann.form()
        assert page.status_code == 200
        assert "Simulated cards" in page.text
        assert 'value="h100-80gb:1/8"' in page.text
        answer = ann.submit({"share": "h100-80gb:1/8"})
        assert answer.status_code == 302, answer.text
        session = ann.ready()
        assert (session["share"], session["eighths"]) == ("1/8", 1)
        assert session["state"] == "running"
        assert ann.server()["user_options"] == {
            "share": "1/8",
            "model": "h100-80gb",
            "profile": "GPU 1/8 · H100 80 GB (simulated)",
        }

        kernel = ann.kernel()
        seen = kernel(
            "import os, pynvml as n\n"
            "n.nvmlInit()\n"
            "print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).total)\n"
            "print(os.environ['GPUSPAWNER_SESSION'], os.path.exists(os.path.expanduser('~/tour.ipynb')))\n"
        ).split()
        assert seen[:2] == ["1", str(session["memory_bytes"])]
        assert seen[2:] == [session["id"], "True"]

        ann.stop()
        assert hub.free_eighths() == 16
        # the last choice is chosen again
        assert chosen(ann.form().text) == "h100-80gb:1/8"


@pytest.mark.versions
@pytest.mark.case("hub-3")
def test_no_options_are_the_default_share(hub: Hub) -> None:
    with hub.user("bea") as bea:
        session = bea.start({})
        assert session["share"] == "1/4"
        assert bea.server()["user_options"]["profile"] == "GPU 1/4 · H100 80 GB (simulated)"
        bea.stop()
        bea.start({"share": "1/8"})
        bea.stop()
        assert bea.start({})["share"] == "1/4"
        bea.stop()


@pytest.mark.case("hub-2")
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"share": True}, "share"),
        ({"share": float("nan")}, "share"),
        ({"share": 1.125}, "share"),
        ({"share": "1/3"}, "share"),
        ({"share": "-1/8"}, "share"),
        ({"share": "9/8"}, "share"),
        ({"share": "1e999"}, "share"),
        ({"share": ["1/4"]}, "share"),
        ({"share": "1/4", "model": "%s"}, "model"),
        ({"share": "1/4", "model": "h900-1gb"}, "model"),
        ({"color": "red"}, "color"),
        ({"share": "x" * 10_000_000}, "share"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_malformed_options_are_refused_and_change_nothing(hub: Hub, options: dict[str, Any], field: str) -> None:
    with hub.user("cleo") as cleo:
        answer = cleo.ask(options)
        assert answer.status_code == 400, answer.text
        message = answer.json()["message"]
        assert message.startswith(field)
        assert "llowed" in message or "This fleet has: h100-80gb" in message
        assert cleo.server() == {}
        assert cleo.sessions() == []


@pytest.mark.versions
def test_a_refused_choice_is_not_the_next_default_and_not_a_failure(hub: Hub) -> None:
    with hub.user("dora") as dora:
        dora.start({"share": "1/8"})
        dora.stop()
        assert dora.ask({"share": "1/3"}).status_code == 400
        session = dora.start(None)  # as the last time
        assert session["share"] == "1/8"
        dora.stop()
    log = (hub.stack.state / "logs" / "hub.log").read_text()
    assert "consecutive spawns failed" not in log


@pytest.mark.versions
def test_the_form_says_why_it_refuses(hub: Hub) -> None:
    with hub.user("eve") as eve:
        eve.form()
        answer = eve.submit({"share": "v100-32gb:1/3"})
        assert answer.status_code == 400
        assert "1/3" in answer.text
        assert "Allowed: 1/8" in answer.text.replace("&#34;", '"')
        assert 'id="gpu-form"' in answer.text
        assert eve.sessions() == []


@pytest.mark.case("hub-7")
def test_two_whole_cards_are_two_cards_and_a_third_is_refused_in_words(hub: Hub) -> None:
    with hub.user("fay") as fay, hub.user("gus") as gus, hub.user("hal") as hal:
        first, second = fay.start({"share": "1"}), gus.start({"share": "1"})
        uuids = {session["cards"][0]["uuid"] for session in (first, second)}
        assert len(uuids) == 2
        for share in ("1", "1/8"):
            answer = hal.ask({"share": share})
            assert answer.status_code == 409, answer.text
            assert "cannot be started now" in answer.json()["message"]
        answer = hal.ask({})
        assert answer.status_code == 409
        assert "Nothing is free" in answer.json()["message"]
        page = hal.form()
        assert 'id="gpu-full"' in page.text
        assert hal.sessions() == []
        fay.stop()
        gus.stop()
    assert hub.free_eighths() == 16


@pytest.mark.versions
@pytest.mark.case("hub-4")
def test_named_servers_have_sessions_and_choices_of_their_own(hub: Hub) -> None:
    with hub.user("ida") as ida:
        one, two = ida.start({"share": "1/8"}, "one"), ida.start({"share": "1/2"}, "two")
        assert one["id"] != two["id"]
        assert (one["server"], two["server"]) == ("one", "two")
        assert ida.kernel("two")("print(1 + 1)") == "2\n"
        ida.stop("one")
        ida.stop("two")
        assert chosen(ida.form("two").text) == "h100-80gb:1/2"
        assert chosen(ida.form().text) == "h100-80gb:1/4"


@pytest.mark.case("hub-4")
def test_two_servers_of_one_user_share_a_card_and_each_has_its_own_limit(hub: Hub) -> None:
    with hub.user("ivy") as ivy:
        default, named = ivy.start({"share": "1/8"}), ivy.start({"share": "1/2"}, "two")
        assert default["cards"][0]["uuid"] == named["cards"][0]["uuid"]
        here, there = ivy.kernel(), ivy.kernel("two")
        for kernel, session in ((here, default), (there, named)):
            kernel(CUDA)
            seen = kernel("import os; print(os.environ['CUDA_VISIBLE_DEVICES'], info()[1])").split()
            assert seen == [session["cards"][0]["uuid"], str(session["memory_bytes"])]
        assert here(f"print(allocate({9 * GIB}), allocate({GIB}))") == "CUDA_SUCCESS CUDA_ERROR_OUT_OF_MEMORY\n"
        assert there(f"print(allocate({30 * GIB}))") == "CUDA_SUCCESS\n"

        with hub.stack.service() as service:
            grown = service.patch(f"/sessions/{default['id']}", json={"share": "1/4"}).json()["session"]
        assert grown["memory_bytes"] == 2 * default["memory_bytes"]
        assert here("print(info()[1])") == f"{grown['memory_bytes']}\n"
        assert there("print(info()[1])") == f"{named['memory_bytes']}\n"
        assert {row["server"]: row["share"] for row in ivy.sessions()} == {"": "1/4", "two": "1/2"}
        assert here(f"print(allocate({GIB}))") == "CUDA_SUCCESS\n"
        ivy.stop()
        assert there(f"print(allocate({8 * GIB}), info()[1])") == f"CUDA_SUCCESS {named['memory_bytes']}\n"
        ivy.stop("two")
    assert hub.free_eighths() == 16


@pytest.mark.versions
@pytest.mark.case("hub-12")
@pytest.mark.parametrize("name", ["Anna@Example.org", "first last", "łukasz 東京", "👩‍🔬🚀", "n" * 255])
def test_any_name_works(hub: Hub, name: str) -> None:
    # JupyterHub itself makes names lower-case
    with hub.user(name.lower()) as user:
        session = user.start({"share": "1/8"})
        assert session["user"] == name.lower()
        assert user.kernel()("import os; print(os.environ['JUPYTERHUB_USER'])") == f"{name.lower()}\n"
        user.stop()


@pytest.mark.case("hub-12")
@pytest.mark.parametrize("name", ["n" * 256, "🦊" * 300])
def test_a_name_that_is_too_long_is_refused_in_words_and_holds_nothing(hub: Hub, name: str) -> None:
    user = hub.user(name)
    with closing(user.browser):
        answer = user.ask({"share": "1/8"})
        assert answer.status_code == 400, answer.text
        assert answer.json()["message"] == "user: String should have at most 255 characters."
        assert "at most 255 characters" in user.submit({"share": "h100-80gb:1/8"}).text
        assert user.server() == {}
    assert hub.free_eighths() == 16


@pytest.mark.case("hub-12")
def test_names_that_look_alike_do_not_share_a_home(hub: Hub) -> None:
    with hub.user("jo@x") as one, hub.user("jo-x") as other:
        one.start({"share": "1/8"})
        other.start({"share": "1/8"})
        homes = {user.kernel()("import os; print(os.path.expanduser('~'))") for user in (one, other)}
        assert len(homes) == 2
        one.stop()
        other.stop()


@pytest.mark.versions
@pytest.mark.case("hub-10")
def test_a_cancelled_start_leaves_nothing(hub: Hub) -> None:
    with hub.user("kim") as kim:
        assert kim.submit({"share": "1/2"}).status_code == 302
        until(kim.sessions, what="a session")
        kim.stop()
        assert hub.free_eighths() == 16
        kim.start({"share": "1/8"})
        kim.stop()


@pytest.mark.versions
@pytest.mark.case("hub-7")
@pytest.mark.case("hub-13")
def test_who_finds_no_room_waits_on_the_progress_page_and_is_let_in_or_gives_up(hub: Hub) -> None:
    with hub.user("una") as una, hub.user("uwe") as uwe, hub.user("uma") as uma:
        una.start({"share": "2"})
        assert "You would wait." in uwe.form().text
        assert uwe.submit({"share": "h100-80gb:1/2", "wait": "on"}).status_code == 302
        assert uma.submit({"share": "h100-80gb:1", "wait": "on"}).status_code == 302
        (first, second) = until(lambda: len(found := hub.queue()) == 2 and found, 30, "two who wait")
        assert {first["user"], second["user"]} == {"uwe", "uma"}
        pending = uwe.browser.get("/hub/spawn-pending/uwe").text
        assert "in the queue." in pending
        assert "For how long is not known." in pending
        uma.stop()
        assert [each["user"] for each in hub.queue()] == ["uwe"], "a cancelled start waits no more"
        with uwe.browser.stream("GET", "/hub/api/users/uwe/server/progress", timeout=120) as events:
            told = []
            for line in events.iter_lines():
                if line.startswith("data:"):
                    told.append(line)
                    if "Number 1 in the queue." in line and len(told) < 9:
                        una.api("DELETE", "/server")
        assert "Chosen: 1/2 of card" in "\n".join(told)
        assert '"ready": true' in told[-1]
        assert uwe.session()["share"] == "1/2"
        assert hub.queue() == []
        uwe.stop()


@pytest.mark.case("hub-1")
def test_after_a_failed_start_with_a_share_one_without_has_nothing_of_it(hub: Hub) -> None:
    with hub.user("mia") as mia:
        assert mia.submit({"share": "1/2"}).status_code == 302
        folder = hub.stack.state / "node" / "sessions" / until(mia.sessions, what="a session")[0]["id"]
        os.kill(until(lambda: read_alive(folder), what="its processes").child, signal.SIGKILL)
        until(lambda: not mia.server() and hub.free_eighths() == 16, 60, "the start to fail")
        session = mia.start({"share": "none"})
        assert (session["share"], session["eighths"], session["cards"]) == ("none", 0, [])
        assert mia.server()["user_options"]["share"] == "none"
        assert mia.kernel()("import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))") == "''\n"
        mia.stop()


@pytest.mark.case("hub-10")
def test_a_server_that_ends_while_it_starts_is_told_at_once_and_leaves_nothing(hub: Hub) -> None:
    with hub.user("jon") as jon:
        assert jon.submit({"share": "1/2"}).status_code == 302
        folder = hub.stack.state / "node" / "sessions" / until(jon.sessions, what="a session")[0]["id"]
        alive = until(lambda: read_alive(folder), what="its processes")
        os.kill(alive.child, signal.SIGKILL)
        with jon.browser.stream("GET", "/hub/api/users/jon/server/progress", timeout=120) as events:
            told = [line for line in events.iter_lines() if line.startswith("data:")]
        assert "Your server ended with status 137 while it was starting" in told[-1]
        assert '"failed": true' in told[-1]
        until(lambda: hub.free_eighths() == 16, what="the share to come back")
        jon.start({"share": "1/8"})
        jon.stop()


@pytest.mark.versions
@pytest.mark.case("hub-13")
def test_progress_tells_the_card(hub: Hub) -> None:
    with hub.user("lea") as lea:
        assert lea.submit({"share": "h100-80gb:1/4"}).status_code == 302
        with lea.browser.stream("GET", "/hub/api/users/lea/server/progress", timeout=120) as events:
            told = [line for line in events.iter_lines() if line.startswith("data:")]
        text = "\n".join(told)
        assert "Asked for 1/4 of a card (H100 80 GB)" in text
        assert re.search(r"Chosen: 1/4 of card [01], NVIDIA H100", text)
        assert "The server is starting on card" in text
        assert '"ready": true' in told[-1]
        lea.stop()
