"""Energy and carbon dioxide of a session between two of its rows, from the cards' own counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuspawner.share import EIGHTHS_PER_CARD

#: A card's counter does not say whose energy it was: a session bears the part that its eighths are of the card.
METHOD = "card counter by share"


class Meter:
    """What the cards' counters showed a moment ago: they are read between the changes, since a change must not wait for
    a driver. `counters`: millijoules since whenever by uuid; a card that is not in it says nothing. `grid`: grams of
    carbon dioxide per kilowatt hour and where that is from; None where nobody said it."""

    def __init__(self) -> None:
        self.counters: Mapping[str, int] = {}
        self.grid: tuple[int, str] | None = None

    def read(self, cards: Sequence[str], last: Any) -> dict[str, Any]:
        """The columns of a row about a session on `cards` whose row before is `last` (None: it has none). A counter
        that went back belongs to a driver that was loaded anew, so nothing is known."""
        read = self.counters
        counter = sum(read[card] for card in cards) if cards and all(card in read for card in cards) else None
        found: dict[str, Any] = {"counter_mj": counter}
        if last is None or counter is None or last.counter_mj is None or counter < last.counter_mj:
            return found
        eighths = min(last.eighths // len(cards), EIGHTHS_PER_CARD)
        energy = (counter - last.counter_mj) * eighths // EIGHTHS_PER_CARD
        grid = self.grid
        found |= {"energy_mj": energy, "method": METHOD}
        if grid is not None:
            # mJ -> kWh is / 3.6e9, grams -> micrograms * 1e6
            found |= {"co2_ug": energy * grid[0] // 3600, "method": f"{METHOD}; {grid[0]} g/kWh, {grid[1]}"[:255]}
        return found
