"""Writes down what nobody asks for: which cards there are, what their nodes cost, other prices, the last look."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuspawner.fleet.base import Fleet
from gpuspawner.service.clock import moment, now_ms
from gpuspawner.service.ledger.live_grid import LiveGrid
from gpuspawner.service.ledger.sums import close_hours
from gpuspawner.service.store import CardChange, Store
from gpuspawner.service.tariff import PriceList, Tariff

#: Seconds between two notes of when the service last looked: so much of a session that ends while the service is down
#: may stay uncharged.
HEARTBEAT = 10.0
#: Seconds between two looks at the cards' energy counters.
METER = 2.0
#: Seconds between two looks for hours that can be closed.
SUMS = 30.0
_SEEN = "seen_ms"


class Keeper:
    """Keeps the ledger complete. Not thread-safe: the watcher's alone."""

    def __init__(
        self, fleet: Fleet, store: Store, prices: Callable[[], PriceList], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._prices = prices
        self._live = LiveGrid(lambda: prices().grid_live, clock)
        self._clock = clock
        self._next_beat = self._next_reading = self._next_sums = 0.0
        self._tariff: Tariff | None = None
        self._known: dict[str, tuple[str, str, int | None]] = {}
        #: when a service last looked, in ms since the epoch; None where none ever did
        self.seen: int | None = None
        self.recall()

    def recall(self) -> None:
        """Take what the database says: another service may have led until now."""
        self._known = self._store.cards()
        self.seen = int(mark) if (mark := self._store.mark(_SEEN)) else None

    def look(self) -> None:
        """Write down what has changed since the last look."""
        if self._clock() >= self._next_reading:
            self._next_reading = self._clock() + METER
            self._store.meter.counters = self._fleet.energy_mj()
            self._store.meter.grid = self._live.grams_per_kwh() or self._prices().grams_per_kwh(moment(now_ms()))
        # what holds since a moment ago goes before what is so from now on: times in the ledger never go back
        self._look_at_prices()
        self._look_at_cards()
        if self._clock() >= self._next_beat:
            self._next_beat = self._clock() + HEARTBEAT
            self.seen = now_ms()
            self._store.set_mark(_SEEN, str(self.seen))
        if self._clock() >= self._next_sums and not close_hours(self._store.engine):
            self._next_sums = self._clock() + SUMS

    def _since(self) -> int | None:
        """The moment from which what the price list says now holds, if it came since the last look; None: now."""
        now = now_ms()
        begun = [change for change in self._prices().changes() if change <= now]
        return begun[-1] if begun and self.seen is not None and begun[-1] > self.seen else None

    def _look_at_prices(self) -> None:
        tariff = self._prices().at(moment(now_ms()))
        if tariff != self._tariff:
            self._store.repriced(self._since())
            self._tariff = tariff

    def _look_at_cards(self) -> None:
        prices, now = self._prices(), moment(now_ms())
        found = {}
        for state in self._fleet.cards():
            cost = prices.cost_micros(state.node, now)
            found[state.card.uuid] = (state.node, state.card.model, cost)
        changes = []
        for uuid, (node, model, cost) in found.items():
            known = self._known.get(uuid)
            if known != (node, model, cost):
                if known is not None and known[0] != node:
                    changes.append(CardChange("gone", known[0], uuid, known[1], None))
                moved = known is None or known[:2] != (node, model)
                changes.append(CardChange("card", node, uuid, model, cost, None if moved else self._since()))
        for uuid in self._known.keys() - found.keys():
            node, model, cost = self._known[uuid]
            changes.append(CardChange("gone", node, uuid, model, cost))
        if changes:
            self._store.note_cards(sorted(changes, key=lambda change: change.at is None))
        self._known = found
