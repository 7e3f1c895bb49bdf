"""What the page shows: every card and session as it is, looked at once a second while somebody watches."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpuspawner.fleet.base import CardReadings, CardState, Grant
from gpuspawner.service import views
from gpuspawner.service.auth import Principal
from gpuspawner.service.cordons import THIS_MACHINE
from gpuspawner.service.sessions import SessionService
from gpuspawner.service.store import LIVE
from gpuspawner.service.tariff import Pricing
from gpuspawner.share import GPUShare

Json = dict[str, Any]
#: So many changes are remembered; who is further behind gets everything anew.
KEPT = 120
#: Cards and sessions in one event of a snapshot, so that a browser is never busy for long with one.
PART = 400
_NOTHING = CardReadings()


@dataclass(frozen=True)
class Delta:
    """What changed with look `number`: the new card or session by its id, None where it is gone. `gone`: whose the
    sessions were that are gone, by id."""

    number: int
    at: str
    cards: Mapping[str, Json | None]
    sessions: Mapping[str, Json | None]
    gone: Mapping[str, Json] = field(default_factory=dict)


class Viewer:
    """What somebody may see: all of it, or the sessions that their scopes name and the cards of those."""

    def __init__(self, who: Principal) -> None:
        self.who = who
        self.all = who.may_everywhere("read")

    def sees(self, session: Json) -> bool:
        """Whether a session is theirs to see."""
        return self.all or self.who.may("read", session["user"], session["server"])


class Board:
    """Cards and sessions, and the last changes of them. `look` is called by one thread at a time; the rest by any."""

    def __init__(self, service: SessionService, tariff: Pricing, clock: Callable[[], float] = time.time) -> None:
        self._service = service
        self._tariff = tariff
        self._clock = clock
        self._lock = threading.Lock()
        self._deltas: deque[Delta] = deque(maxlen=KEPT)
        self._cards: dict[str, Json] = {}
        self._sessions: dict[str, Json] = {}
        self.life = secrets.token_hex(4)
        self.number = 0
        self.at = ""
        self._written: dict[int, list[bytes]] = {}

    def look(self) -> None:
        """See how things are now, and remember what changed. Raises what fleet and records raise."""
        cards, sessions = self._cards_now(), self._sessions_now()
        at = views.iso(round(self._clock() * 1000))
        with self._lock:
            delta = Delta(
                self.number + 1,
                at,
                _changes(self._cards, cards),
                _changes(self._sessions, sessions),
                {name: old for name, old in self._sessions.items() if name not in sessions},
            )
            self.at = at
            if delta.cards or delta.sessions or not self.number:
                self.number = delta.number
                self._deltas.append(delta)
                self._cards, self._sessions = cards, sessions
                self._written = {}

    def since(self, number: int) -> list[Delta] | None:
        """The changes after that one; None where they are not remembered any more."""
        with self._lock:
            if number > self.number or (self._deltas and number < self._deltas[0].number - 1):
                return None
            return [delta for delta in self._deltas if delta.number > number]

    def snapshot(self, viewer: Viewer) -> tuple[int, list[bytes]]:
        """Everything that somebody may see, as events that end with `ready`, and the number it stands at."""
        with self._lock:
            number, at, cards, sessions = self.number, self.at, self._cards, self._sessions
            kept = self._written.get(number) if viewer.all else None
        if kept is not None:
            return number, kept
        if not viewer.all:
            sessions = {name: each for name, each in sessions.items() if viewer.sees(each)}
            theirs = {uuid for each in sessions.values() for uuid in each["cards"]}
            cards = {uuid: card for uuid, card in cards.items() if uuid in theirs}
        parts = [event("begin", {"cards": len(cards), "sessions": len(sessions), "at": at})]
        parts += [event("part", {"cards": some}) for some in _slices(cards)]
        parts += [event("part", {"sessions": some}) for some in _slices(sessions)]
        parts.append(event("ready", {"at": at}, f"{self.life}-{number}"))
        if viewer.all:
            with self._lock:
                self._written = {number: parts}
        return number, parts

    def change(self, delta: Delta, viewer: Viewer) -> bytes:
        """A change as an event, with what somebody may see of it."""
        cards, sessions = delta.cards, delta.sessions
        if not viewer.all:
            sessions = {
                name: each for name, each in sessions.items() if viewer.sees(each if each else delta.gone[name])
            }
            with self._lock:
                mine = {uuid for each in self._sessions.values() if viewer.sees(each) for uuid in each["cards"]}
                new = {uuid for each in sessions.values() if each for uuid in each["cards"]}
                cards = {
                    **{uuid: self._cards[uuid] for uuid in new if uuid in self._cards},
                    **{uuid: card for uuid, card in cards.items() if uuid in mine},
                }
        body = {"at": delta.at, "cards": cards, "sessions": sessions}
        return event("change", body, f"{self.life}-{delta.number}")

    def position(self, last_event_id: str | None) -> int | None:
        """The number in a Last-Event-ID of this board; None where it is of no use."""
        life, _, number = (last_event_id or "").partition("-")
        return int(number) if life == self.life and number.isascii() and number.isdigit() and len(number) < 18 else None

    def _cards_now(self) -> dict[str, Json]:
        fleet = self._service.fleet
        readings = fleet.readings()
        held: dict[str, int] = {}
        for grant in fleet.grants():
            for card in grant.cards:
                held[card.uuid] = held.get(card.uuid, 0) + grant.eighths_per_card
        return {
            state.card.uuid: self._card(state, held.get(state.card.uuid, 0), readings.get(state.card.uuid, _NOTHING))
            for state in fleet.cards()
        }

    def _card(self, state: CardState, held: int, now: CardReadings) -> Json:
        card, cordon = state.card, self._service.cordons.of(state)
        return {
            "uuid": card.uuid,
            "node": state.node or THIS_MACHINE,
            "index": card.index,
            "name": card.name,
            "model": card.model,
            "simulated": card.simulated,
            "memory": card.memory_bytes,
            "memory_used": now.memory_used_bytes,
            "utilization": now.utilization_percent,
            "temperature": now.temperature_celsius,
            "power": now.power_watts,
            "health": state.health.state,
            "health_reason": state.health.reason,
            "grade": state.grade,
            "held": held,
            "free": state.free_eighths,
            "cordon": None if cordon is None else views.cordon(cordon).model_dump(),
        }

    def _sessions_now(self) -> dict[str, Json]:
        grants = {grant.session: grant for grant in self._service.fleet.grants()}
        prices: dict[tuple[str, str], str] = {}
        return {row.id: self._session(row, grants.get(row.id), prices) for row in self._service.store.held()}

    def _session(self, row: Any, grant: Grant | None, prices: dict[tuple[str, str], str]) -> Json:
        share = _share(row.share)
        live = grant is not None and not grant.ended and row.state in LIVE
        if live and grant is not None and share.cards == 1 and grant.eighths_per_card:
            share = _part(grant.eighths_per_card)
        key = share.amount, row.model
        if key not in prices:
            prices[key] = self._tariff.price(share, row.model)
        cards = grant.cards if grant is not None else ()
        parking = self._service.queue.parker.rows.get(row.id)
        return {
            "id": row.id,
            "user": row.user,
            "server": row.server,
            "state": row.state,
            "share": share.amount,
            "eighths": grant.eighths_per_card if grant is not None else 0,
            "cards": [card.uuid for card in cards] or json.loads(row.cards),
            "model": row.model,
            "memory": share.memory_bytes(cards[0].memory_bytes) if live and cards else None,
            "memory_used": self._service.fleet.used_bytes(row.id) if grant is not None else None,
            "price": prices[key],
            "currency": self._tariff.currency,
            "created": views.iso(row.created_ms),
            "burst": row.burst,
            "parking": None if parking is None else parking.state,
        }


# thousands of sessions have the same few
_share = lru_cache(256)(GPUShare.parse)
_part = lru_cache(16)(GPUShare)


def event(kind: str, body: Json, number: str | None = None) -> bytes:
    """A server-sent event."""
    named = f"id: {number}\n" if number else ""
    return f"{named}event: {kind}\ndata: {json.dumps(body, separators=(',', ':'))}\n\n".encode()


def _changes(old: Mapping[str, Json], new: Mapping[str, Json]) -> dict[str, Json | None]:
    found: dict[str, Json | None] = {name: each for name, each in new.items() if old.get(name) != each}
    found.update({name: None for name in old if name not in new})
    return found


def _slices(things: Mapping[str, Json]) -> Iterator[list[Json]]:
    every = list(things.values())
    for begin in range(0, len(every), PART):
        yield every[begin : begin + PART]
