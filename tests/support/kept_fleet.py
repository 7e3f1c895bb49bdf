"""A fleet in memory whose grants outlive the service: each change is a line in a file, as a node's records are."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuspawner.fleet.base import FleetChange, Grant, Launch
from gpuspawner.service.clock import now_ms
from gpuspawner.share import GPUShare

from .memory_fleet import MemoryFleet


def entries(path: Path) -> list[dict[str, Any]]:
    """All lines of the file in order: who held how many eighths from when on, and which cards went and came. `state` is
    that of a grant: live, ended, freed; `away`: while no service was there. A line that a kill cut off was not said."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


class KeptFleet(MemoryFleet):
    """Of every third session the memory stays for a while after its end. `owners`: whether it knows whose sessions are,
    as a cluster does."""

    def __init__(self, path: Path, nodes: int, cards: int, owners: bool) -> None:
        super().__init__(nodes=nodes, cards=cards)
        self._all = dict(self.states)
        self._owners = owners
        self.away = False
        self._changes: list[FleetChange] = []
        self._owner: dict[str, tuple[str, str, str]] = {}
        for entry in entries(path):
            self._replay(entry)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _replay(self, entry: dict[str, Any]) -> None:
        if "there" in entry:
            self._there(entry["card"], entry["there"])
            return
        old = self.held.pop(entry["session"], None)
        if old is not None:
            self._take(old, -1)
        if entry["state"] != "freed":
            cards = tuple(self._all[uuid].card for uuid in entry["cards"])
            user, server, share = self._owner[entry["session"]] = (entry["user"], entry["server"], entry["share"])
            owner = (user, server, GPUShare.parse(share)) if self._owners else None
            ended = entry["state"] == "ended"
            self.hold(Grant(entry["session"], cards, entry["eighths"], ended=ended, owner=owner))

    def _say(self, grant: Grant, state: str) -> None:
        user, server, share = self._owner[grant.session]
        what = {"at": now_ms(), "session": grant.session, "user": user, "server": server, "share": share}
        more = {"cards": [card.uuid for card in grant.cards], "eighths": grant.eighths_per_card, "state": state}
        self._line({**what, **more, "away": self.away})

    def _line(self, entry: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(entry).encode() + b"\n")

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
            grant, launch = super().start(session, user, share, card, burst=burst, server=server)
            self._owner[session] = (user, server, share.amount)
            self._say(grant, "live")
            return grant, launch

    def resize(self, session: str, eighths: int) -> None:
        with self._lock:
            super().resize(session, eighths)
            self._say(self.held[session], "live")

    def end(self, session: str, reason: str) -> bool:
        with self._lock:
            grant = self.held.get(session)
            if grant is None:
                return True
            if zlib.crc32(session.encode()) % 3 == 0:
                if not grant.ended:
                    self._say(grant, "ended")
                    self.held[session] = replace(grant, ended=True)
                return False
            self._say(grant, "freed")
            return super().end(session, reason)

    def stops(self, session: str) -> None:
        """Its program ends by itself."""
        with self._lock:
            if session in self.held:
                self._changes.append(FleetChange(session, "ended", "its program ended"))
                self.end(session, "")

    def free_up(self) -> None:
        """The memory of ended sessions is gone."""
        with self._lock:
            for grant in [grant for grant in self.held.values() if grant.ended]:
                self._say(grant, "freed")
                self._take(self.held.pop(grant.session), -1)

    def alive(self, session: str) -> bool:
        grant = self.held.get(session)
        return grant is not None and not grant.ended

    def watch(self) -> list[FleetChange]:
        with self._lock:
            found, self._changes = self._changes, []
        return found

    def toggle(self, uuid: str) -> None:
        """A card on which nothing is goes, or one that is gone comes back."""
        with self._lock:
            if any(card.uuid == uuid for grant in self.held.values() for card in grant.cards):
                return
            there = uuid not in self.states
            self._line({"at": now_ms(), "card": uuid, "there": there})
            self._there(uuid, there)

    def _there(self, uuid: str, there: bool) -> None:
        if there:
            self.states[uuid] = self._all[uuid]
        else:
            self.states.pop(uuid, None)
