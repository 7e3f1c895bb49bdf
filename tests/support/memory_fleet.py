"""A fleet in memory, for tests of what the service decides: cards, and shares on them, without any process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from gpuspawner.card import Card
from gpuspawner.errors import NoRoom, NotFound
from gpuspawner.fleet.base import (
    CardHealth,
    CardReadings,
    CardState,
    Cordons,
    FleetChange,
    Grant,
    Holder,
    Launch,
    Notice,
)
from gpuspawner.fleet.placement import place
from gpuspawner.service.app import create_app
from gpuspawner.service.auth import NotSignedIn, Principal
from gpuspawner.service.database import open_database
from gpuspawner.service.leader import Alone, Leadership
from gpuspawner.service.policy.book import Book
from gpuspawner.service.policy.decide import Person
from gpuspawner.service.policy.source import PolicySource
from gpuspawner.service.requests.rate import RateLimit
from gpuspawner.service.sessions import SessionService
from gpuspawner.service.store import Store
from gpuspawner.service.tariff import CurrentTariff
from gpuspawner.share import EIGHTHS_PER_CARD, GPUShare

H100 = "NVIDIA H100 80GB HBM3"


class MemoryFleet:
    """`nodes` machines with `cards` cards each."""

    grade = "guarded"

    def __init__(self, nodes: int = 1, cards: int = 2, name: str = H100) -> None:
        self.states = {
            f"GPU-{node:04}-{card:02}": CardState(
                Card(f"GPU-{node:04}-{card:02}", card, name, 80 << 30),
                EIGHTHS_PER_CARD,
                CardHealth("ok"),
                node=f"n{node}" if nodes > 1 else "",
            )
            for node in range(nodes)
            for card in range(cards)
        }
        self.held: dict[str, Grant] = {}
        self.energy: dict[str, int] = {}
        self.now: dict[str, CardReadings] = {}
        #: What is shown to sessions, and how often something new was.
        self.told: dict[str, str] = {}
        self.tellings: list[tuple[str, str]] = []
        self.cordons = Cordons()
        self._lock = threading.RLock()

    def hold(self, grant: Grant) -> None:
        """A grant that is there already."""
        with self._lock:
            self.held[grant.session] = grant
            self._take(grant, 1)

    def _take(self, grant: Grant, sign: int) -> None:
        for card in grant.cards:
            state = self.states[card.uuid]
            free = state.free_eighths - sign * grant.eighths_per_card
            self.states[card.uuid] = replace(state, free_eighths=free)

    def cards(self, uuids: Collection[str] | None = None) -> list[CardState]:
        if uuids is None:
            return self.cordons.applied(list(self.states.values()))
        return self.cordons.applied([self.states[uuid] for uuid in uuids if uuid in self.states])

    def grants(self) -> list[Grant]:
        return list(self.held.values())

    def grant(self, session: str) -> Grant | None:
        return self.held.get(session)

    def start(
        self,
        session: str,
        user: str,
        share: GPUShare,
        card: str | None = None,
        *,
        burst: bool = False,
        server: str = "",
    ) -> tuple[Grant, Launch]:
        with self._lock:
            where = place(share, self.cards(), card)
            cards = tuple(self.states[uuid].card for uuid in where)
            grant = Grant(session, cards, share.eighths_per_card, burst=burst)
            self.hold(grant)
        return grant, self.launch(session)

    tells = True

    def tell(self, session: str, notice: str | None) -> None:
        if notice is None:
            self.told.pop(session, None)
        elif self.told.get(session) != notice:
            self.told[session] = notice
            self.tellings.append((session, notice))

    def launch(self, session: str) -> Launch:
        return Launch([], {}, "/", None, None)

    def resize(self, session: str, eighths: int) -> None:
        with self._lock:
            before = self.held.get(session)
            if before is None:
                raise NotFound("This session has ended.")
            more = eighths - before.eighths_per_card
            if more > self.states[before.cards[0].uuid].free_eighths:
                raise NoRoom("Others hold it.")
            self._take(before, -1)
            self.held[session] = replace(before, eighths_per_card=eighths)
            self._take(self.held[session], 1)

    def set_burst(self, session: str, burst: bool) -> None:
        self.held[session] = replace(self.held[session], burst=burst)

    def end(self, session: str, reason: str) -> bool:
        with self._lock:
            grant = self.held.pop(session, None)
            if grant is not None:
                self._take(grant, -1)
        return True

    def alive(self, session: str) -> bool:
        return session in self.held

    def used_bytes(self, session: str) -> int | None:
        return None

    def busy(self) -> dict[str, bool | None]:
        return {}

    def notices(self, session: str) -> list[Notice]:
        return []

    def holders(self) -> list[Holder]:
        return []

    def watch(self) -> list[FleetChange]:
        return []

    def readings(self) -> dict[str, CardReadings]:
        return dict(self.now)

    def energy_mj(self) -> dict[str, int]:
        return dict(self.energy)

    def close(self) -> None:
        pass


class People:
    """A directory with groups and roles by name."""

    def __init__(self, **groups: Collection[str]) -> None:
        self.groups = groups
        self.roles: dict[str, Collection[str]] = {}

    def person(self, name: str) -> Person:
        return Person(name, frozenset(self.groups.get(name, ())), frozenset(self.roles.get(name, ())))


class Tokens:
    """Tokens that are names: `hub`, `admin`, `server:NAME/SERVER` (a server's own), or a user's."""

    async def principal(self, authorization: str | None) -> Principal:
        kind, _, token = (authorization or "").partition(" ")
        if kind != "Bearer" or not token:
            raise NotSignedIn("Send a token.")
        if token == "hub":
            return Principal("hub", hub=True)
        if token == "admin":
            return Principal("admin", frozenset({"custom:gpuspawner:admin"}), user="admin")
        what, narrowed, user = ("server", token.removeprefix("server:"), token[7:].partition("/")[0])
        if not token.startswith("server:"):
            what, narrowed, user = "user", token, token
        scopes = {f"custom:gpuspawner:{action}!{what}={narrowed}" for action in ("read", "resize", "activity")}
        return Principal(user, frozenset(scopes), user=user)


class House:
    """The service over a fleet in memory, asked through its API. `policy`: the text of its policy file. Without
    `start` its records are open, and nobody acts on them."""

    def __init__(
        self,
        folder: Path,
        policy: str | None = None,
        fleet: MemoryFleet | None = None,
        url: str | None = None,
        rate: RateLimit | None = None,
        leadership: Callable[[Engine], Leadership] = lambda _engine: Alone(),
        start: bool = True,
        servers: Any = None,
        **groups: Any,
    ) -> None:
        self.folder = folder
        self.fleet = fleet or MemoryFleet()
        self.people = People(**groups)
        self.path = folder / "policy.yaml"
        if policy is not None:
            self.path.write_text(policy)
        self.source = PolicySource(self.path, folder / "kept.yaml")
        self.tariff = CurrentTariff(lambda: self.source.current.prices)
        self.engine = open_database(url or f"sqlite:///{folder / 'service.sqlite'}")
        self.store = Store(self.engine, self.tariff)
        if not start:
            return
        self.service = SessionService(
            self.fleet,
            self.store,
            book=Book(self.source, self.people),
            leadership=leadership(self.engine),
            servers=servers,
        )  # type: ignore[arg-type]
        self.rate = rate

    @cached_property
    def app(self) -> FastAPI:
        """The API, made when it is first asked."""
        return create_app(self.service, Tokens(), self.tariff, choose_card=True, rate=self.rate)  # type: ignore[arg-type]

    @cached_property
    def client(self) -> TestClient:
        """Asks the API."""
        return TestClient(self.app, base_url="http://test/api/v1", raise_server_exceptions=False)

    def write(self, policy: str) -> None:
        """Another policy file, and the look that finds it."""
        new = self.path.with_suffix(".tmp")
        new.write_text(policy)
        new.replace(self.path)
        self.service.look()

    def ask(self, who: str, method: str, path: str, **more: Any) -> Any:
        """The answer to a request of somebody's."""
        headers = {"Authorization": f"Bearer {who}", **more.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **more)

    def start(self, user: str, share: str = "1/4", **more: Any) -> Any:
        """The answer to a start by the hub."""
        return self.ask("hub", "POST", "/sessions", json={"user": user, "share": share, **more})
