"""Telemetry: the driver's readings and the service's share, put together while somebody looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from .nvml import CardReading, NVMLReader, NVMLUnavailable
from .service import ServiceClient, ServiceError
from .service_words import NO_CARD
from .shares import SESSION_SECONDS, session_memory, total, without_card
from .watchers import Watchers

SCHEMA = Path(__file__).with_name("telemetry.yaml")
SCHEMA_ID = "urn:gpuspawner:telemetry:1"

#: Seconds that one sample waits for a slow service before it goes out with what is known.
SERVICE_PATIENCE = 0.5
#: Seconds that one sample waits for the driver.
DRIVER_PATIENCE = 3.0


#: What a status tells of each card. Events, one a second for each page, tell the sums, which are what panels show.
_OF_CARD = tuple(field.name for field in fields(CardReading) if field.name != "processes")

#: Processes that one event carries.
MOST_PROCESSES = 256


class _Logger(Protocol):
    def debug(self, message: str, *arguments: Any) -> None: ...


class Detail(Protocol):
    """What is found out beside the readings while a panel looks."""

    @property
    def revision(self) -> int:
        """Grows with every change."""

    async def update(self, pids: Iterable[int], session: Mapping[str, Any] | None) -> None:
        """Look again."""


class SessionView:
    """The session as the service last told it, asked again when older than wanted.

    Requests that come at the same time share one question to the service.
    """

    def __init__(self, client: ServiceClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._asked = float("-inf")
        self._question: asyncio.Task[None] | None = None
        self.last: dict[str, Any] | None = None
        self.error: ServiceError | None = None

    async def get(self, max_age: float = 0.0) -> dict[str, Any]:
        """The session, at most `max_age` seconds old. Raises `ServiceError`."""
        await self.refresh(max_age)
        if self.error is not None or self.last is None:
            raise self.error or RuntimeError("no answer and no error")
        return self.last

    async def refresh(self, max_age: float = 0.0, patience: float | None = None) -> None:
        """Ask again if older than `max_age`; give up waiting, not asking, after `patience` seconds."""
        if self._question is None:
            if self._clock() - self._asked < max_age:
                return
            self._question = asyncio.create_task(self._ask())
        await asyncio.wait({self._question}, timeout=patience)

    def learn(self, session: dict[str, Any]) -> None:
        """Take over a session that another request brought along."""
        self.last, self.error, self._asked = session, None, self._clock()

    async def _ask(self) -> None:
        try:
            self.learn(await self._client.session())
        except ServiceError as error:
            self.error, self._asked = error, self._clock()
        finally:
            self._question = None


class TelemetrySampler:
    """Samples every `interval` seconds until nobody has asked for telemetry any more."""

    def __init__(
        self,
        reader: NVMLReader,
        view: SessionView,
        emit: Callable[[dict[str, Any]], None],
        log: _Logger,
        interval: float,
        detail: Detail | None = None,
        own_cards: tuple[str, ...] = (),
    ) -> None:
        self._reader = reader
        self._view = view
        self._emit = emit
        self._log = log
        self._interval = interval
        # One thread: NVML may block for seconds on a lost card, and the event loop must not.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gpuspawner-nvml")
        self._reading: asyncio.Future[list[CardReading]] | None = None
        self._reading_since = 0.0
        self._allowed: int | None = None
        self._detail = detail
        self._own_cards = own_cards
        self._energy = _EnergySince()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.watchers = Watchers()
        self._latest: dict[str, Any] | None = None
        self._sampled = float("-inf")

    @property
    def running(self) -> bool:
        """Whether samples are being taken."""
        return self._task is not None and not self._task.done()

    def watch(self, seconds: float, viewer: str = "", detail: bool = False) -> bool:
        """Keep sampling for this viewer for so many seconds from now; 0: the viewer has gone. Whether samples were
        taken already.

        `detail`: with processes, and whatever else a panel shows.
        """
        running = self.running
        self.watchers.hold(viewer, seconds, detail=detail)
        if self.watchers.looking and not self.running:
            self._task = asyncio.create_task(self._run())
        elif not self.watchers.looking:
            self.nudge()
        return running

    def nudge(self) -> None:
        """Sample now rather than at the next tick, for instance after a resize."""
        self._latest = None
        self._wake.set()

    async def recent(self) -> dict[str, Any]:
        """The last sample while samples are taken anyhow; else, and where it lacks what is looked at, a new one."""
        age = time.monotonic() - self._sampled
        if self._latest is not None and age < 2 * self._interval and ("revision" in self._latest or not self._detailed):
            return self._latest
        return await self.sample()

    @property
    def _detailed(self) -> bool:
        return self._detail is not None and self.watchers.detail

    async def stop(self) -> None:
        """Stop sampling and let the driver go."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        # A hanging driver call must not keep the server from ending.
        self._thread.submit(self._reader.close)
        self._thread.shutdown(wait=False)

    async def sample(self) -> dict[str, Any]:
        """Take one sample; never raises for a missing driver, card or service."""
        detail = self._detail if self._detailed else None
        since = time.monotonic()
        cards, reason = await self._read(processes=detail is not None)
        allowed = _whole(total(card.memory_allowed_bytes for card in cards))
        # A changed limit is a changed share: ask at once instead of at the next turn.
        changed = self._allowed is not None and allowed is not None and allowed != self._allowed
        await self._view.refresh(0.0 if changed else SESSION_SECONDS, patience=SERVICE_PATIENCE)
        self._allowed = allowed
        if without_card(self._view.last):  # which was not known yet when the driver was read
            cards, reason = [], NO_CARD
        sample = _sample(cards, reason, self._view.last, self._view.error)
        sample |= self._energy.note(cards, sample["at"])
        if detail is not None:
            held = _processes(cards)
            sample["processes"] = held
            await detail.update([one["pid"] for one in held or ()], self._view.last)
            sample["revision"] = detail.revision
        self._latest, self._sampled = sample, since
        return sample

    async def pids(self) -> list[int]:
        """The processes of this session that hold card memory now; none where the driver does not say."""
        cards, _ = await self._read(processes=True)
        if _processes(cards) is None:  # a reading that was under way already was without them
            cards, _ = await self._read(processes=True)
        return [row["pid"] for row in _processes(cards) or ()]

    async def _run(self) -> None:
        while self.watchers.looking:
            started = time.monotonic()
            self._wake.clear()
            try:
                sample = await self.sample()
                self._emit({name: value for name, value in sample.items() if name != "cards"})
            except Exception as error:  # one bad sample must not end the telemetry
                self._log.debug("gpuspawner: a telemetry sample failed: %r", error)
            pause = max(0.05, self._interval - (time.monotonic() - started))
            try:
                await asyncio.wait_for(self._wake.wait(), pause)
            except TimeoutError:
                continue

    async def _read(self, *, processes: bool) -> tuple[list[CardReading], str | None]:
        if without_card(self._view.last):  # whatever cards the driver shows here are not this session's
            return [], NO_CARD
        if self._reading is None:
            loop = asyncio.get_running_loop()
            # While the service has not answered yet, the environment says whose cards are the session's.
            uuids = [card["uuid"] for card in (self._view.last or {}).get("cards", [])] or self._own_cards
            self._reading = loop.run_in_executor(self._thread, self._reader.read, uuids, processes)
            self._reading_since = time.monotonic()
        # Several requests may wait for the same reading; whoever is first puts it away.
        reading = self._reading
        done, _ = await asyncio.wait({reading}, timeout=DRIVER_PATIENCE)
        if not done:
            return [], f"The driver has not answered for {time.monotonic() - self._reading_since:.0f} s."
        if self._reading is reading:
            self._reading = None
        try:
            return reading.result(), None
        except NVMLUnavailable as error:
            return [], str(error)
        except Exception as error:  # a driver's library of an unexpected kind is no reason to show nothing
            self._log.debug("gpuspawner: the driver could not be read: %r", error)
            return [], f"The driver could not be read ({type(error).__name__})."


class _EnergySince:
    """Energy since this server's first reading: the driver's own counter runs since the driver was loaded."""

    def __init__(self) -> None:
        self._first: dict[str | None, float] = {}
        self._since: str | None = None

    def note(self, cards: list[CardReading], at: str) -> dict[str, Any]:
        """The energy of all cards until `at`, in joules; None as soon as one card does not say."""
        used: list[float | None] = []
        for card in cards:
            now = card.energy_joules
            if now is None:
                used.append(None)
                continue
            if now < self._first.get(card.uuid, float("inf")):  # not seen before, or the driver was loaded anew
                self._first[card.uuid] = now
                self._since = at
            used.append(now - self._first[card.uuid])
        joules = total(used)
        return {
            "energy_joules": None if joules is None else round(joules, 1),
            "energy_since": None if joules is None else self._since,
        }


def _processes(cards: list[CardReading]) -> list[dict[str, Any]] | None:
    """Bytes by process over all cards, the largest first; None as soon as one card does not say."""
    held: dict[int, list[int | None]] = {}
    for card in cards:
        if card.processes is None:
            return None
        for pid, size in card.processes:
            held.setdefault(pid, []).append(size)
    if not cards:
        return None
    rows = [{"pid": pid, "memory_bytes": _whole(total(sizes))} for pid, sizes in held.items()]
    rows.sort(key=lambda row: -(row["memory_bytes"] or 0))
    return rows[:MOST_PROCESSES]


def _card(card: CardReading) -> dict[str, Any]:
    return {name: getattr(card, name) for name in _OF_CARD}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _sample(
    cards: list[CardReading], reason: str | None, session: dict[str, Any] | None, error: ServiceError | None
) -> dict[str, Any]:
    known = session or {}
    loads = total(card.utilization_percent for card in cards)
    heat = [card.temperature_celsius for card in cards if card.temperature_celsius is not None]
    names = sorted({card.name for card in cards if card.name} or {c["name"] for c in known.get("cards", [])})
    used = _whole(total(card.memory_used_bytes for card in cards))
    allowed = _whole(total(card.memory_allowed_bytes for card in cards))
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "available": reason is None,
        "reason": reason,
        "service_reason": None if error is None else str(error),
        "share": known.get("share"),
        "model": ", ".join(names) or None,
        "simulated": known.get("simulated"),
        "grade": known.get("grade"),
        # Without a driver here the service may still know what its own driver says.
        "memory_used_bytes": used if reason is None or without_card(session) else known.get("memory_used_bytes"),
        "memory_allowed_bytes": session_memory(session) if reason else allowed,
        "utilization_percent": None if loads is None else round(loads / len(cards), 1),
        "power_watts": total(card.power_watts for card in cards),
        "temperature_celsius": max(heat) if heat else None,
        "cards": [_card(card) for card in cards],
    }
