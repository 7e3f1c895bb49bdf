"""Joules of this session: of its cards by share, of the processor by CPU time. Every figure says how it was found.

*Cards.* The card's own counter where it has one. Else power, read once a second and integrated, which is called
estimated. Either is of the whole card, and is charged by the eighths that the session holds, second by second; without
a limit file the card is taken as the session's own.

*Processor.* The package's counter (RAPL), charged by the container's part of all CPU time that was used on the
machine meanwhile. Where the counter or the times cannot be read, it is unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpuspawner_runtime import cards, elastic
from gpuspawner_runtime.cards import Reading, Source
from gpuspawner_runtime.limit_file import Share
from gpuspawner_runtime.processor import Processor

SECONDS = 1.0
#: A gap in the readings of power that is longer than this is not bridged.
_LONGEST_GAP = 30.0
_EIGHTH_NS_OF_A_CARD_HOUR = 8 * 3600 * 10**9


@dataclass(frozen=True)
class Energy:
    """What was used between start and now. None is unknown; each figure has its method beside it, never alone."""

    card_joules: float | None
    card_method: str | None
    processor_joules: float | None
    processor_method: str | None
    #: mean load of the cards, 0 to 1; of the whole card where several sessions share it
    load: float | None
    #: eighths held times time, exactly; None without a limit file
    card_hours: Fraction | None

    @property
    def estimated(self) -> bool:
        """Whether the cards' figure was integrated and not counted."""
        return self.card_method is not None and self.card_method.startswith("estimated")

    @property
    def joules(self) -> float | None:
        """Cards and processor together, as far as known; None if neither is."""
        known = [each for each in (self.card_joules, self.processor_joules) if each is not None]
        return sum(known) if known else None


class _Card:
    """One card's sums."""

    def __init__(self) -> None:
        self.counted = self.integrated = 0.0
        self.by_counter = self.by_power = self.gap = False
        self._counter: float | None = None
        self._power: tuple[float, float] | None = None

    def add(self, reading: Reading, at: float, part: float) -> None:
        """Charge what was used since the last reading; `part` is the share, 0 to 1."""
        joules, watts = reading.joules, reading.watts
        counted = None
        if joules is not None and self._counter is not None:
            # A driver that was loaded anew counts from 0 again: that stretch is left to power.
            counted = joules - self._counter if joules >= self._counter else None
        if counted is not None:
            self.counted += counted * part
            self.by_counter = True
        elif joules is None or self._counter is not None:
            self._integrate(watts, at, part)
        self._counter = joules
        self._power = None if watts is None else (at, watts)

    def _integrate(self, watts: float | None, at: float, part: float) -> None:
        if watts is None or self._power is None:
            return
        before, power = self._power
        if at - before > _LONGEST_GAP:
            self.gap = True
            return
        self.integrated += (power + watts) / 2 * (at - before) * part
        self.by_power = True


class Meter:
    """Measures from `start` to `stop`; `read` says how much so far. A thread reads once a second.

    `source`: where readings of cards come from, found by itself if left out; `shares`: what the session holds.
    """

    def __init__(
        self,
        source: Source | None = None,
        processor: Processor | None = None,
        shares: Callable[[], Sequence[Share] | None] = elastic.shares,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._source = source
        self._processor = processor or Processor()
        self._shares, self._clock = shares, clock
        self._cards: dict[str, _Card] = {}
        self._loads: list[float] = []
        self._parts: set[float] = set()
        self._held: tuple[int, int] | None = None
        self._eighth_ns: int | None = None
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Meter:
        """Begin. Twice is once."""
        if self._thread is None:
            if self._source is None:
                self._source = cards.find()
            self._processor.start()
            self.sample()
            self._thread = threading.Thread(target=self._go_on, name="gpuspawner-energy", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """End; `read` stays as it is then."""
        if self._thread is not None and not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            self.sample()
            self._processor.stop()

    def sample(self) -> None:
        """Read once."""
        now = self._clock()
        held = {share.uuid: share for share in self._shares() or ()}
        readings = self._source.read() if self._source is not None else ()
        with self._guard:
            for reading in readings:
                if held and reading.uuid not in held:
                    continue  # somebody else's, or the card around a MIG slice, whose own use nobody tells
                part = held[reading.uuid].eighths / 8 if held else 1.0
                self._parts.add(part)
                self._cards.setdefault(reading.uuid, _Card()).add(reading, now / 1e9, part)
            loads = [reading.load for reading in readings if reading.load is not None]
            if loads:
                self._loads.append(sum(loads) / len(loads))
            self._count_hours(now, sum(share.eighths for share in held.values()) if held else None)

    def read(self) -> Energy:
        """What was used so far."""
        if not self._ended.is_set():
            self.sample()
        with self._guard:
            joules, method = self._card_figure()
            load = sum(self._loads) / len(self._loads) if self._loads else None
            hours = None if self._eighth_ns is None else Fraction(self._eighth_ns, _EIGHTH_NS_OF_A_CARD_HOUR)
        processor = self._processor.read()
        return Energy(joules, method, *processor, load, hours)

    def _card_figure(self) -> tuple[float | None, str | None]:
        assert self._source is not None or not self._cards
        used = [card for card in self._cards.values() if card.by_counter or card.by_power]
        if self._source is None or not used or len(used) < len(self._cards):
            return None, None  # a sum that lacks a card would be too small
        name = f"{self._source.name}, {self._share_words()}"
        if any(card.gap for card in used):
            name += ", with gaps"
        total = sum(card.counted + card.integrated for card in used)
        if any(card.by_power for card in used):
            return total, f"estimated: power read every {SECONDS:g} s ({name})"
        return total, f"measured: the card's counter ({name})"

    def _share_words(self) -> str:
        if self._parts == {1.0}:
            return "the whole card"
        if len(self._parts) == 1:
            return f"{next(iter(self._parts)):.1%} of the card, by share"
        return "by share, which changed"

    def _count_hours(self, now: int, eighths: int | None) -> None:
        if self._held is not None:
            since, held = self._held
            self._eighth_ns = (self._eighth_ns or 0) + held * (now - since)
        self._held = None if eighths is None else (now, eighths)

    def _go_on(self) -> None:
        while not self._ended.wait(SECONDS):
            self.sample()
