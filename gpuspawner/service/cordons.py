"""Cards and nodes that administrators have taken out of use: nothing starts or grows there, and a drain ends what runs.

They are one of the service's marks, so a restart forgets none.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from gpuspawner.errors import Conflict, NotFound
from gpuspawner.fleet.base import CardState, Fleet, Grant, Notice
from gpuspawner.service.store import Store

_MARK = "cordons"
Kind = Literal["card", "node"]
#: What the only machine of a fleet is called, which has no name there.
THIS_MACHINE = "this machine"


@dataclass(frozen=True)
class Cordon:
    """Nothing new on a card (by uuid) or a node (by name; empty: this machine), by whom, why and since when. Times are
    milliseconds since the epoch; `ends_ms`: when what runs there is ended, None: it stays."""

    kind: Kind
    name: str
    by: str
    reason: str
    since_ms: int
    ends_ms: int | None = None


class CordonBook:
    """The cordons in force. Thread-safe."""

    def __init__(self, store: Store, fleet: Fleet, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._fleet = fleet
        self._clock = clock
        self._lock = threading.Lock()
        self._text: str | None = None
        self._all: dict[tuple[str, str], Cordon] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read what another service may have written, and tell the fleet."""
        with self._lock:
            text = self._store.mark(_MARK)
            if text != self._text:
                self._text = text
                self._take([Cordon(**each) for each in json.loads(text or "[]")])

    def _take(self, found: Iterable[Cordon]) -> None:
        self._all = {(each.kind, each.name): each for each in found}
        why = {key: f"{each.reason.rstrip('.')} (said by {each.by})." for key, each in self._all.items()}
        self._fleet.cordons.replace(
            {name: text for (kind, name), text in why.items() if kind == "card"},
            {name: text for (kind, name), text in why.items() if kind == "node"},
        )

    def all(self) -> list[Cordon]:
        """All of them, newest first."""
        return sorted(self._all.values(), key=lambda each: -each.since_ms)

    def of(self, state: CardState) -> Cordon | None:
        """What a card is under: the cordon of its own, or of its node."""
        known = self._all
        return known.get(("card", state.card.uuid)) or known.get(("node", state.node))

    def add(self, kind: Kind, name: str, by: str, reason: str, drain_seconds: int | None) -> Cordon:
        """Take a card or node out of use, or change how it is. Raises NotFound."""
        if not any(name == (state.card.uuid if kind == "card" else state.node) for state in self._fleet.cards()):
            raise NotFound(f"There is no such {kind} in this fleet.", field="name", given=name)
        now = round(self._clock() * 1000)
        with self._lock:
            old = self._all.get((kind, name))
            since = now if old is None else old.since_ms
            new = Cordon(kind, name, by, reason, since, None if drain_seconds is None else now + 1000 * drain_seconds)
            self._write({**self._all, (kind, name): new}.values())
        return new

    def lift(self, kind: Kind, name: str) -> Cordon:
        """Take it back into use; what it was under. Raises NotFound."""
        with self._lock:
            old = self._all.get((kind, name))
            if old is None:
                raise NotFound(f"This {kind} is not cordoned.", field="name", given=name)
            self._write(each for each in self._all.values() if each is not old)
        return old

    def _write(self, found: Iterable[Cordon]) -> None:
        cordons = list(found)
        text = json.dumps([asdict(each) for each in cordons])
        self._store.set_mark(_MARK, text)
        self._text = text
        self._take(cordons)

    def check_growth(self, grant: Grant) -> None:
        """Whether a session may grow where it is. Raises Conflict."""
        for cordon in self._over(grant):
            message = f"Nothing grows on this card now: {cordon.reason.rstrip('.')} (said by {cordon.by})."
            raise Conflict(message, code="cordoned")

    def notices(self, grant: Grant | None) -> list[Notice]:
        """What the user of a session on a card that is drained should know."""
        if grant is None or not self._all:
            return []
        return [
            Notice(
                "drain",
                f"Your card is taken out of use: {cordon.reason.rstrip('.')}. Save your work; your server is then "
                "stopped, and can be started again on another card.",
                cordon.since_ms / 1000,
                cordon.ends_ms / 1000,
            )
            for cordon in self._over(grant)
            if cordon.ends_ms is not None
        ]

    def to_end(self, grants: Iterable[Grant]) -> list[tuple[str, str, str]]:
        """Sessions whose time on a card that is drained is over, with who drains it, and why."""
        now = self._clock() * 1000
        if not any(each.ends_ms is not None and each.ends_ms <= now for each in self._all.values()):
            return []
        found = []
        for grant in grants:
            for cordon in () if grant.ended else self._over(grant):
                if cordon.ends_ms is not None and cordon.ends_ms <= now:
                    found.append((grant.session, cordon.by, f"its card was drained: {cordon.reason}"))
                    break
        return found

    def _over(self, grant: Grant) -> list[Cordon]:
        if not self._all or not grant.cards:
            return []
        states = self._fleet.cards([card.uuid for card in grant.cards])
        found = {(each.kind, each.name): each for state in states if (each := self.of(state)) is not None}
        return list(found.values())
