"""A service that parks, over a fleet in memory and a hub that can be away, for tests of what is decided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuspawner.errors import Unavailable
from gpuspawner.service.waiting.servers import HubRefuses
from support.memory_fleet import House, MemoryFleet

POLICY = """
version: 1
queue:
- {users: [ursa, uli], default: inference-urgent}
- {users: [tom, tia], default: training}
"""


class Servers:
    """The hub, as far as it stops and starts servers: what it was asked for. `down`: it does not answer."""

    def __init__(self) -> None:
        self.house: House | None = None
        self.asked: list[tuple[str, str]] = []
        self.down = False
        self.refuses = False
        self.holds = False

    def _hear(self, what: str, user: str) -> House:
        if self.down:
            raise Unavailable("JupyterHub does not answer.")
        if self.refuses:
            raise HubRefuses("JupyterHub refuses it (403).")
        self.asked.append((what, user))
        assert self.house is not None
        return self.house

    def options(self, user: str, server: str) -> dict[str, Any]:
        self._hear("options", user)
        return {"share": "1/8", "environment": "lab", "profile": "as it was"}

    def stop(self, user: str, server: str) -> None:
        house = self._hear("stop", user)
        live = house.store.live(user, server)
        if live is not None and not self.holds:
            house.service.end(live.id, "hub", "the server was stopped")

    def start(self, user: str, server: str, options: dict[str, Any]) -> None:
        house = self._hear("start", user)
        assert options == {"share": options["share"], "environment": "lab", "wait": True}
        assert house.start(user, **options).status_code in (200, 201, 202)


class Fleet(MemoryFleet):
    """`up`: whose servers run."""

    def __init__(self, cards: int) -> None:
        super().__init__(cards=cards)
        self.up: set[str] = set()

    def alive(self, session: str) -> bool:
        return session in self.up and super().alive(session)


class Place:
    """A service that can be killed and started anew over one fleet and one hub."""

    def __init__(self, folder: Path, cards: int = 1, policy: str = POLICY, url: str | None = None) -> None:
        self.folder, self.policy, self.url = folder, policy, url
        self.fleet = Fleet(cards)
        self.hub = Servers()
        self.house: House = None  # type: ignore[assignment]
        self.killed()

    def killed(self) -> None:
        """What was only in memory is gone."""
        if self.house is not None:
            self.house.engine.dispose()
        self.house = self.hub.house = House(self.folder, self.policy, self.fleet, self.url, servers=self.hub)

    def look(self) -> None:
        self.house.service.look()
        self.house.service.queue.errands()
        self.house.service.look()

    def full(self, user: str) -> str:
        """Somebody has a whole card whose memory is all in use, so that shrinking is not enough."""
        session = str(self.house.start(user, "1", wait=True).json()["session"]["id"])
        self.fleet.up.add(session)
        self.house.service.look()
        return session

    def waits(self, user: str) -> str:
        return str(self.house.start(user, "1", wait=True).json()["waiting"]["id"])

    def notice(self, session: str) -> str:
        return str(json.loads(self.fleet.told[session])["notice"])

    def answer(self, session: str, who: str, notice: str | None = None, outcome: str = "saved") -> Any:
        body = {"notice": notice or self.notice(session), "outcome": outcome, "said": "2 kernels"}
        return self.house.ask(f"server:{who}/", "PUT", f"/sessions/{session}/parking", json=body)

    def states(self) -> dict[str, str]:
        rows = self.house.service.queue.parker.rows
        return {row.user: row.state for row in rows}
