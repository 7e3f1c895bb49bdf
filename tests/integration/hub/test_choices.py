"""Environments, sessions without a card, choices that no longer exist, and starts that fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.common import until
from support.hub import Hub
from support.stack import stack

pytestmark = [pytest.mark.hub, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]


#: Servers that take a connection, and then end or say nothing.
_LISTENS = (
    "import os, socket, sys; from urllib.parse import urlsplit; "
    "s = socket.create_server(('127.0.0.1', urlsplit(os.environ['JUPYTERHUB_SERVICE_URL']).port)); "
    "c = [s.accept()[0], s.accept()[0]]; "
)


def configuration(*names: str) -> str:
    environments = "".join(
        f"dict(name={name!r}, python={sys.executable!r}, variables={{'OF_THE_ENVIRONMENT': {name!r}}}),"
        for name in names
    )
    for name, code in (("listens", "sys.exit(7)"), ("silent", "s.accept()")):
        environments += f"dict(name={name!r}, command={[sys.executable, '-c', _LISTENS + code]!r}),"
    return (
        f"load_subconfig({str(ROOT / 'jupyterhub_config.py')!r})\n"
        f"c.LocalGPUSpawner.environments = [{environments} dict(name='ends', command=['/bin/false'])]\n"
        "c.LocalGPUSpawner.environment = {'OF_THE_HUB': 'yes'}\n"
        "c.Spawner.consecutive_failure_limit = 2\n"
    )


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A stack with environments of its own."""
    folder = tmp_path_factory.mktemp("choices")
    folder.chmod(0o711)
    config = folder / "config.py"
    config.write_text(configuration("first", "second"))
    with stack(folder / "state", env={"GPUSPAWNER_HUB_CONFIG": str(config)}) as made:
        yield Hub(made)


def test_variables_of_share_environment_and_hub_are_merged(hub: Hub) -> None:
    with hub.user("ann") as ann:
        session = ann.start({"share": "1/4", "environment": "second"})
        seen = ann.kernel()(
            "import os; print(*(os.environ.get(name) for name in "
            "('OF_THE_ENVIRONMENT', 'OF_THE_HUB', 'CUDA_VISIBLE_DEVICES', 'GPUSPAWNER_SESSION')))"
        ).split()
        assert seen == ["second", "yes", session["cards"][0]["uuid"], session["id"]]
        assert ann.server()["user_options"]["environment"] == "second"


@pytest.mark.versions
@pytest.mark.case("hub-10")
def test_ends_and_cancels_during_a_start_are_no_faults_of_the_hub(hub: Hub) -> None:
    pid = hub.stack.pid_of("hub")
    with hub.user("eve") as eve:
        for name, status in (("ends", 1), ("listens", 7), ("ends", 1)):
            answer = eve.ask({"share": "1/8", "environment": name})
            assert answer.status_code in (202, 424), answer.text  # 202: it ended later than the hub waits for an answer
            until(lambda: not eve.server().get("pending"), 60, "the start to fail")
            page = eve.browser.get("/hub/spawn-pending/eve")
            assert page.status_code == 424
            assert f"Your server ended with status {status} while it was starting." in page.text
        with ThreadPoolExecutor(1) as pool:
            for _ in range(2):
                asked = pool.submit(eve.ask, {"share": "1/8", "environment": "silent"})
                until(eve.sessions, what="a session")
                until(lambda: eve.server().get("pending") == "spawn", what="a start")
                eve.stop()
                told = asked.result()
                assert told.status_code == 409
                assert "The start was stopped after" in told.json()["message"]
        assert (eve.sessions(), hub.free_eighths()) == ([], 16)
        assert eve.start({"share": "1/8", "environment": "first"})["share"] == "1/8"
    assert hub.stack.pid_of("hub") == pid
    assert "consecutive spawn" not in (hub.stack.state / "logs" / "hub.log").read_text()


def test_a_start_that_fails_leaves_nothing_and_the_next_may_be_without_a_card(hub: Hub) -> None:
    with hub.user("bob") as bob:
        answer = bob.ask({"share": "1/2", "environment": "ends"})
        if answer.status_code < 400:  # it ended later than the hub waits for an answer
            until(lambda: not bob.server().get("pending"), 60, "the start to fail")
        else:
            assert "ended with status 1" in answer.json()["message"]
        page = bob.browser.get("/hub/spawn-pending/bob").text
        assert "Your server ended with status 1 while it was starting." in page
        assert page.count("given back") == 1
        assert not bob.server().get("ready")
        assert bob.sessions() == []
        assert hub.free_eighths() == 16
        session = bob.start({"share": "none", "environment": "first"})
        assert (session["share"], session["cards"], session["memory_bytes"]) == ("none", [], 0)
        assert bob.server()["user_options"]["profile"] == "No GPU"
        seen = bob.kernel()(
            "import os, pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount(), os.environ['CUDA_VISIBLE_DEVICES'])"
        )
        assert seen == "0 \n"
        assert hub.free_eighths() == 16


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"environment": "gone"}, "environment: 'gone' is not allowed. Allowed: first, second, listens, silent, ends."),
        ({"share": "none", "model": "h100-80gb"}, "model: 'h100-80gb' is not allowed."),
        ({"share": "1/8", "card": "GPU-1"}, "card: "),
        ({"share": "1/8", "burst": 1}, "burst: 1 is not allowed. Allowed: true or false."),
    ],
)
def test_what_cannot_be_chosen_is_a_400_that_names_it(hub: Hub, options: dict[str, object], said: str) -> None:
    log = hub.stack.state / "logs" / "hub.log"
    before = len(log.read_text())
    with hub.user("cyd") as cyd:
        answer = cyd.ask(options)
        assert answer.status_code == 400, answer.text
        assert said in answer.json()["message"]
        page = cyd.submit({"share": "3/8"})
        assert page.status_code in (400, 302), page.text  # 302 to the page that tells it, on a slow machine
        assert cyd.sessions() == []
    assert "Traceback" not in log.read_text()[before:], "nothing is broken"


def test_two_starts_of_one_server_at_the_same_moment_are_one(hub: Hub) -> None:
    with hub.user("dan") as dan, ThreadPoolExecutor(4) as pool:
        dan.form()
        answers = [*pool.map(lambda _: dan.submit({"share": "1/8"}), range(4))]
        assert all(answer.status_code < 500 for answer in answers), [answer.status_code for answer in answers]
        assert 302 in {answer.status_code for answer in answers}
        dan.ready()
        assert len(dan.sessions()) == 1
        dan.stop()
        api = [*pool.map(lambda _: dan.ask({"share": "1/8"}), range(4))]
        assert all(answer.status_code < 500 for answer in api), [answer.text for answer in api]
        dan.ready()
        assert len(dan.sessions()) == 1


def test_a_choice_that_is_gone_is_forgotten(hub: Hub) -> None:
    with hub.user("eve") as eve:
        eve.start({"share": "1/8", "environment": "second"})
        eve.stop()
        config = Path(hub.stack.env["GPUSPAWNER_HUB_CONFIG"])
        config.write_text(configuration("first"))
        hub.kill("hub")
        until(lambda: hub.answers("/hub/health"), 60, "the hub")
        assert 'id="share-h100-80gb-1" value="h100-80gb:1/8"' in eve.form().text
        assert 'value="second"' not in eve.form().text
        refused = eve.ask({"share": "1/8", "environment": "second"})
        assert refused.status_code == 400
        assert "Allowed: first, listens, silent, ends." in refused.json()["message"]
        session = eve.start(None)  # as the last time, but for what is gone
        assert session["share"] == "1/8"
        assert "environment" not in eve.server()["user_options"]
