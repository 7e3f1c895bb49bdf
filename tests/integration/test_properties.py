"""Whatever people, clocks and faults do, in any order: after every step the books are right.

The real service with its agent, real launchers and programs, simulated cards. What is compared is what the driver
shows, what the limit files say, and what the databases hold; never only what the service says of itself. `make soak`
runs the same for longer, with other dice.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
)
from support.books import CARD_EIGHTHS, Books
from support.common import until
from support.machine import CUDA, Machine, SessionProgram, machine
from support.story import SOAK, Story, seconds, step

from gpuspawner.node.limits.launch import session_pids
from gpuspawner.share import GPUShare

SECONDS = seconds(45)
MIB = 1 << 20

users = st.sampled_from(["ann", "bob", "cy", "Dö@x"])
shares = st.sampled_from(["1/8", "1/4", "1/2", "1", "2"])
fractions = st.sampled_from(["1/8", "1/4", "1/2", "1"])
which = st.integers(0, 5)
delays = st.sampled_from([0.0, 0.002, 0.005, 0.01, 0.02, 0.05])


class Held:
    """A session as this test knows it."""

    def __init__(self, session: dict[str, Any], program: SessionProgram | None) -> None:
        self.id: str = session["id"]
        self.user: str = session["user"]
        self.share: str = session["share"]
        self.card: int = session["cards"][0]["index"]
        self.program = program
        self.broken = False  # its card was taken away under it

    @property
    def eighths(self) -> int:
        return GPUShare.parse(self.share).eighths


class Life(Story):
    """Steps on a machine that is the same for all runs: each run gives everything back at its end."""

    node: Machine
    books: Books
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Held] = []
        self.lost: int | None = None

    @initialize(first=shares, second=fractions)
    def begin(self, first: str, second: str) -> None:
        for user, share in (("ann", first), ("bob", second)):
            if not self.over():
                self.story.append(f"a start of {share} by {user}")
                with self.remembered():
                    self.begin_session(user, share, launch=True)

    def some(self, index: int, *, running: bool = False) -> Held | None:
        found = [held for held in self.held if not running or (held.program is not None and not held.broken)]
        return found[index % len(found)] if found else None

    def drop(self, held: Held) -> None:
        """It has ended: its program must be gone, and its eighths come back."""
        self.held.remove(held)
        if held.program is not None:
            until(lambda: held.program.process.poll() is not None, 30, f"the end of {held.id}'s program")  # type: ignore[union-attr]
        if self.lost is None:
            until(lambda: self.books.ended(held.id), 40, f"the eighths of {held.id}")

    def settled(self) -> bool:
        return not self.books.being_ended()

    # -- what people do ------------------------------------------------------------------------------------

    @step(user=users, share=shares, launch=st.booleans())
    def start(self, user: str, share: str, launch: bool) -> None:
        self.begin_session(user, share, launch)

    @step(user=users)
    def start_small(self, user: str) -> None:
        self.begin_session(user, "1/8", launch=True)

    def begin_session(self, user: str, share: str, launch: bool) -> None:
        old = next((held for held in self.held if held.user == user), None)
        settled = self.settled()
        answer = self.node.api.post("/sessions", json={"user": user, "share": share})
        if answer.status_code in (409, 503):
            if answer.status_code == 503:
                assert self.lost is not None, answer.text
            elif settled and old is None and self.lost is None:
                assert not self.books.fits(share), answer.text
            if old is not None and old.id not in self.books.live():
                self.drop(old)
            return
        assert answer.status_code in (200, 201), answer.text
        session = answer.json()["session"]
        if answer.status_code == 200:
            assert old is not None
            assert (old.id, old.share, old.program) == (session["id"], share, None)
            self.held.remove(old)
        elif old is not None:
            self.drop(old)
        program = None
        if launch:
            program = SessionProgram(answer.json()["launch"])
            self.node.programs.append(program)
        held = Held(session, program)
        self.held.append(held)
        if program is not None:
            try:
                program(CUDA)
            except AssertionError:
                assert self.lost is not None or self.full(held)
                held.broken = True

    def full(self, held: Held) -> bool:
        """Whether the card itself has no room for a context any more."""
        return self.books.card_used(held.card) > self.books.card_bytes - 256 * MIB

    @precondition(lambda self: self.lost is None)
    @step(index=which, part=st.integers(1, 12))
    def allocate(self, index: int, part: int) -> None:
        held = self.some(index, running=True)
        if held is None:
            return
        assert held.program is not None
        allowed, used = self.books.limit(held.id), self.books.used(held.id)
        size = allowed * part // 8 // (2 * MIB) * (2 * MIB)
        answer = held.program(f"allocate({size})")
        assert answer == ("CUDA_SUCCESS" if used + size <= allowed else "CUDA_ERROR_OUT_OF_MEMORY"), (
            f"{used} used and {size} asked for of {allowed}: {answer}"
        )

    @precondition(lambda self: self.lost is None)
    @step(index=which)
    def free(self, index: int) -> None:
        held = self.some(index, running=True)
        if held is not None:
            assert held.program is not None
            held.program("free_all()")

    @step(index=which, share=fractions)
    def resize(self, index: int, share: str) -> None:
        held = self.some(index)
        if held is None:
            return
        wanted = GPUShare.parse(share).eighths
        settled, used = self.settled(), self.books.used(held.id)
        room = self.books.free(held.card) + held.eighths if held.eighths <= CARD_EIGHTHS else 0
        answer = self.node.api.patch(f"/sessions/{held.id}", json={"share": share})
        if answer.status_code == 200:
            assert held.eighths <= CARD_EIGHTHS
            held.share = share
        elif answer.status_code == 409:
            shrinks = wanted < held.eighths
            if settled and self.lost is None and held.eighths <= CARD_EIGHTHS:
                assert used > self.books.card_bytes * wanted // CARD_EIGHTHS if shrinks else wanted > room, answer.text
        else:
            assert answer.status_code == 503, answer.text
            assert self.lost is not None, answer.text

    @step(index=which)
    def end(self, index: int) -> None:
        held = self.some(index)
        if held is not None:
            answer = self.node.api.delete(f"/sessions/{held.id}")
            assert answer.status_code == 200, answer.text
            self.drop(held)

    # -- what fails ----------------------------------------------------------------------------------------

    @step(index=which, who=st.sampled_from(["launcher", "program"]))
    def kill_in_session(self, index: int, who: str) -> None:
        held = self.some(index, running=True)
        if held is None:
            return
        assert held.program is not None
        if who == "launcher":
            held.program.process.kill()
        else:
            for pid in session_pids(self.books.folder(held.id)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.drop(held)

    @step()
    def kill_service(self) -> None:
        self.node.kill_service()
        self.node.start_service()

    @step(index=which, share=fractions, delay=delays, what=st.sampled_from(["resize", "end", "start"]))
    def kill_service_at_work(self, index: int, share: str, delay: float, what: str) -> None:
        """kill -9 in the middle of a request: what was asked for has happened whole, or not at all."""
        held = self.some(index)

        def ask() -> None:
            with (
                contextlib.suppress(httpx.HTTPError),
                httpx.Client(base_url=self.node.api.base_url, headers=self.node.api.headers, timeout=30) as api,
            ):
                if what == "start":
                    api.post("/sessions", json={"user": "kay", "share": share})
                elif held is not None and what == "resize":
                    api.patch(f"/sessions/{held.id}", json={"share": share})
                elif held is not None:
                    api.delete(f"/sessions/{held.id}")

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(delay)
        self.node.kill_service()
        asking.join()
        self.node.start_service()
        live = self.books.live()
        for known in list(self.held):
            if known.id not in live:
                assert known is held
                assert what == "end"
                self.drop(known)
            else:
                now = live[known.id]
                allowed = {known.share, share} if known is held and what == "resize" else {known.share}
                assert now in allowed, f"{known.id} has {now}, allowed are {allowed}"
                known.share = now
        for unknown in set(live) - {known.id for known in self.held}:
            session = self.node.api.get(f"/sessions/{unknown}").json()
            assert (session["user"], what) == ("kay", "start")
            self.held.append(Held(session, None))

    @step(days=st.sampled_from([-4000, -1, 0, 1, 4000]))
    def set_clock(self, days: int) -> None:
        self.books.clock.write_text(str(days * 86400))

    @precondition(lambda self: self.lost is None)
    @step(card=st.integers(0, 1))
    def lose_card(self, card: int) -> None:
        self.node.cards.control(f"lose {card}")
        self.lost = card

    @precondition(lambda self: self.lost is not None)
    @step()
    def restore_card(self) -> None:
        self.node.cards.control(f"restore {self.lost}")
        self.all_cards_are_well()

    def all_cards_are_well(self) -> None:
        """The service sees them so: a reading stands for up to a second, and a card that was lost while the service
        started is looked for every five."""

        def well() -> bool:
            cards = self.node.api.get("/offers").json()["cards"]
            return [card["health"]["state"] for card in cards] == ["ok", "ok"]

        until(well, 60, "the cards to be well")
        self.lost = None

    @precondition(lambda self: self.lost is None)
    @step(index=which, share=fractions)
    def silent_driver(self, index: int, share: str) -> None:
        """The driver does not answer for a while; what is asked meanwhile is answered, then or after it."""
        held = self.some(index)
        if held is None:
            return
        os.kill(self.node.cards.pid, signal.SIGSTOP)
        try:
            assert self.node.api.get("/health").status_code == 200
            assert self.node.api.get("/sessions").status_code == 200
            answer = self.node.api.patch(f"/sessions/{held.id}", json={"share": share})
            assert answer.status_code in (200, 409, 503), answer.text
            if answer.status_code == 200:
                held.share = share
        finally:
            os.kill(self.node.cards.pid, signal.SIGCONT)
        path = f"/sessions/{held.id}"
        until(lambda: self.node.api.get(path).json()["memory_used_bytes"] is not None, 20, "the driver to answer again")

    @step()
    def kill_cards(self) -> None:
        """The driver dies and comes back, and with it goes what was on the cards."""
        self.node.kill_cards()
        self.all_cards_are_well()
        for held in self.held:
            held.broken = True

    # -- what always holds ---------------------------------------------------------------------------------

    @invariant()
    def the_books_are_right(self) -> None:
        if not self.over():
            with self.remembered():
                self.check()
            Life.steps += 1

    def check(self) -> None:
        self.books.never_over()
        for held in self.held:
            if held.program is not None:
                assert held.program.process.poll() is None, f"the program of {held.id} has ended, and nobody ended it"
        if self.lost is None:
            shares = {held.id: held.share for held in self.held}
            until(lambda: self.books.explain(shares) == "", 40, lambda: self.books.explain(shares))

    def teardown(self) -> None:
        """Everything ends, and everything comes back."""
        if not Life.failure:
            with self.remembered():
                self.give_back()

    def give_back(self) -> None:
        if self.lost is not None:
            self.node.cards.control(f"restore {self.lost}")
            self.all_cards_are_well()
        for held in list(self.held):
            assert self.node.api.delete(f"/sessions/{held.id}").status_code == 200
            self.drop(held)
        self.check()
        # a card that was lost while the service started is taken up, and what was held on one is free once its driver
        # has answered again
        until(lambda: self.node.free_eighths() == 2 * CARD_EIGHTHS, 40, "every eighth to be free")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Machine]:
    clock = tmp_path / "clock"
    clock.mkdir()
    (clock / "offset").write_text("0")
    (clock / "sitecustomize.py").write_text(Books.CLOCK.replace("FILE", str(clock / "offset")))
    env = {"PYTHONPATH": str(clock), "GPUSPAWNER_CHOOSE_CARD": "yes"}  # so that the cards' health is told
    with machine(tmp_path / "state", "2*h100-80gb", env=env) as made:
        yield made


@pytest.mark.timeout(SECONDS + 240)
def test_the_books_are_right_after_every_step(node: Machine, tmp_path: Path) -> None:
    Life.node, Life.books = node, Books(node, tmp_path / "clock" / "offset")
    Life.tell(SECONDS, stories=8, steps=60 if SOAK else 40)
    with closing(sqlite3.connect(node.state / "service" / "service.sqlite")) as database:
        kinds = dict(database.execute("SELECT kind, COUNT(*) FROM ledger GROUP BY kind"))
    print(f"{Life.steps} steps; rows of the ledger: {kinds}")
    assert kinds.keys() >= {"start", "end", "free"}, "too little has happened to show anything"
