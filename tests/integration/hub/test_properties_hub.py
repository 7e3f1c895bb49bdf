"""The whole stack, hub and proxy too: whatever people do and whichever part is killed, hub, service, proxy and node
agree after every step.

`tests/integration/test_properties.py` does the same to the service alone, with more steps and more faults. `make soak`
runs both for longer, with other dice.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from support.books import CARD_EIGHTHS, Books
from support.common import until
from support.hub import Hub, User
from support.story import Story, seconds, step

from gpuspawner.node.limits.launch import session_pids
from gpuspawner.share import GPUShare
from gpuspawner.simulation import SimulatedCards

pytestmark = pytest.mark.hub

SECONDS = seconds(60)
NAMES = ("ann", "bob", "cy", "dö@x")

users = st.sampled_from(NAMES)
shares = st.sampled_from(["1/8", "1/4", "1/2", "1", "2"])
fractions = st.sampled_from(["1/8", "1/4", "1/2", "1"])
parts = st.sampled_from(["hub", "proxy", "service"])
delays = st.sampled_from([0.0, 0.02, 0.1, 0.3, 1.0, 2.0])


class Life(Story):
    """Steps on a stack that is the same for all runs: each run gives everything back at its end."""

    repeats = False
    hub: Hub
    books: Books
    people: dict[str, User]
    tokens: dict[str, str]

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, dict[str, Any]] = {}  # by user, as the service told of the session when it began

    @initialize(first=shares)
    def begin(self, first: str) -> None:
        self.story.append(f"a start of {first} by ann")
        if not self.over():
            with self.remembered():
                self.begin_server("ann", first)

    # -- what people do ------------------------------------------------------------------------------------

    @step(user=users, share=shares)
    def start(self, user: str, share: str) -> None:
        self.begin_server(user, share)

    def begin_server(self, user: str, share: str) -> None:
        fits = self.books.fits(share)
        answer = self.people[user].ask({"share": share})
        if user in self.held:
            assert answer.status_code == 400, answer.text
        elif fits:
            assert answer.status_code in (201, 202), answer.text
            self.held[user] = self.people[user].ready()
            assert self.held[user]["share"] == share
        else:
            # asked for with a body, the hub answers at once or lets its page say why
            until(lambda: not self.people[user].server().get("pending"), 60, "the refusal")
            assert answer.status_code in (202, 409), answer.text
            assert not self.people[user].server().get("ready")

    @step(user=users, share=fractions)
    def resize(self, user: str, share: str) -> None:
        session = self.held.get(user)
        if session is None:
            return
        before, wanted = GPUShare.parse(session["share"]), GPUShare.parse(share).eighths
        room = self.books.free(session["cards"][0]["index"]) + before.eighths
        with self.hub.stack.service() as service:
            answer = service.patch(f"/sessions/{session['id']}", json={"share": share})
        if before.cards == 1 and wanted <= room:
            assert answer.status_code == 200, answer.text
            session["share"] = share
        else:
            assert answer.status_code == 409, answer.text

    @step(user=users)
    def stop(self, user: str) -> None:
        if self.held.pop(user, None) is not None:
            self.people[user].stop()

    # -- what fails ----------------------------------------------------------------------------------------

    @step(part=parts)
    def kill(self, part: str) -> None:
        self.hub.kill(part)
        self.all_answer()

    @step(user=users)
    def kill_server(self, user: str) -> None:
        session = self.held.pop(user, None)
        if session is None:
            return
        for pid in session_pids(self.books.folder(session["id"])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: self.books.ended(session["id"]), 60, "the session to end")
        until(lambda: not self.people[user].server().get("ready"), 60, "the hub to notice")

    @step(user=users, share=fractions, part=parts, delay=delays)
    def kill_at_work(self, user: str, share: str, part: str, delay: float) -> None:
        """kill -9 in the middle of a start or a stop: it has happened whole, or not at all, and nobody disagrees."""
        person, session = self.people[user], self.held.pop(user, None)

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                person.ask({"share": share}) if session is None else person.api("DELETE", "/server")

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(delay)
        self.hub.kill(part)
        asking.join()
        self.all_answer()
        until(lambda: self.agreed(person), 90, lambda: f"hub and service to agree about {user}: {self.views(person)}")
        for one in person.sessions():
            if session is None:
                assert one["share"] == share
            else:
                assert one["id"] == session["id"]
                one["share"] = session["share"]
            self.held[user] = one

    def views(self, person: User) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        return person.server(), [(one["id"], one["state"]) for one in person.sessions()]

    def agreed(self, person: User) -> bool:
        """Nothing is pending, and there is a server with a running session, or neither."""
        server, sessions = self.views(person)
        running = [state for _, state in sessions] == ["running"]
        return not server.get("pending") and bool(server.get("ready")) == running and len(sessions) == running

    def all_answer(self) -> None:
        until(lambda: self.hub.answers("/hub/health"), 60, "the hub behind the proxy")
        until(lambda: self.hub.answers("/services/gpuspawner/api/v1/health"), 60, "the service behind the proxy")

    # -- what always holds ---------------------------------------------------------------------------------

    @invariant()
    def all_agree(self) -> None:
        if not self.over():
            with self.remembered():
                self.check()

    def check(self) -> None:
        self.books.never_over()
        shares = {session["id"]: session["share"] for session in self.held.values()}
        until(lambda: self.books.explain(shares) == "", 60, lambda: self.books.explain(shares))
        for user, person in self.people.items():
            assert bool(person.server().get("ready")) == (user in self.held), f"{user}: {self.views(person)}"
            until(lambda: self.served(user) == (user in self.held), 60, f"the proxy's route of {user}")  # noqa: B023

    def served(self, user: str) -> bool:
        """Whether a session of the user answers behind the proxy, as whose it is."""
        person = self.people[user]
        headers = {"Authorization": f"token {self.tokens[user]}"}
        path = f"/user/{quote(user, safe='@')}/api/status"
        try:
            return httpx.get(person.hub.stack.url + path, headers=headers, timeout=20).status_code == 200
        except httpx.HTTPError:
            return False

    def teardown(self) -> None:
        """Everything ends, and everything comes back."""
        if not Life.failure:
            with self.remembered():
                for user in list(self.held):
                    del self.held[user]
                    self.people[user].stop()
                self.check()
                until(lambda: self.hub.free_eighths() == 2 * CARD_EIGHTHS, 60, "every eighth to be free")


class _Node:
    """What the books are read from."""

    def __init__(self, hub: Hub) -> None:
        self.state: Path = hub.stack.state
        self.cards = SimulatedCards(socket=self.state / "run" / "simulation.sock")


@pytest.mark.timeout(SECONDS + 420)
def test_hub_service_proxy_and_node_agree_after_every_step(own_hub: Hub, tmp_path: Path) -> None:
    Life.hub, Life.books = own_hub, Books(_Node(own_hub), tmp_path / "offset")
    with contextlib.ExitStack() as signed_in:
        Life.people = {name: signed_in.enter_context(own_hub.user(name)) for name in NAMES}
        Life.tokens = {name: own_hub.stack.token(name) for name in NAMES}
        Life.tell(SECONDS, stories=20, steps=20)
