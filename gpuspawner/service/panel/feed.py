"""The board to many browsers at once, as server-sent events.

Nobody has a queue of their own: all read the board's last changes, each at its own place. Who reads slowly falls
behind by themselves, and gets everything anew where what they missed is not remembered any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from fastapi.concurrency import run_in_threadpool

from gpuspawner.errors import GPUSpawnerError
from gpuspawner.service.panel.board import Board, Viewer, event

log = logging.getLogger(__name__)

#: Seconds between looks, and at most this part of the time is spent on looking.
INTERVAL = 1.0
DUTY = 0.5
#: A sign of life after so many seconds without a change.
BEAT = 5.0
#: Seconds for which a sign-in is believed while its stream is open.
BELIEVED = 30.0
#: Streams at once: of one person, and of all.
MOST_OF_ONE = 20
MOST = 5000
#: Bytes written at once: what a stuck browser can make this process hold for it.
CHUNK = 64 * 1024


class TooManyStreams(GPUSpawnerError):
    """Too many streams (429)."""

    code = "too_many_streams"
    status = 429


@dataclass
class Place:
    """How far a stream has come; None: it has nothing yet."""

    number: int | None


class Feed:
    """Streams of one board. It looks while there is one, and not else."""

    def __init__(self, board: Board, interval: float = INTERVAL, beat: float = BEAT) -> None:
        self.board = board
        self._interval = interval
        self._beat = beat
        self._open: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self.problem: str | None = None

    @property
    def streams(self) -> int:
        """How many are open."""
        return self._open.total()

    def follow(
        self, viewer: Viewer, last_event_id: str | None, still: Callable[[], Awaitable[Viewer | None]]
    ) -> AsyncIterator[bytes]:
        """What to send to somebody. `still`: what they may see now; None ends the stream. Raises TooManyStreams."""
        if self._open[viewer.who.name] >= MOST_OF_ONE or self.streams >= MOST:
            raise TooManyStreams("Too many of these pages are open. Close one and try again.")
        return self._follow(viewer, Place(self.board.position(last_event_id)), still)

    async def _follow(
        self, viewer: Viewer, place: Place, still: Callable[[], Awaitable[Viewer | None]]
    ) -> AsyncIterator[bytes]:
        name = viewer.who.name
        self._open[name] += 1
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._look())
            checked = time.monotonic()
            yield event("hello", {"user": viewer.who.user, "admin": viewer.who.may("admin"), "all": viewer.all})
            while True:
                news = self._news
                if self.board.number:
                    async for piece in self._missing(viewer, place):
                        yield piece
                if time.monotonic() - checked > BELIEVED:
                    now = await still()
                    if now is None or now.who != viewer.who:
                        yield event("bye", {"reason": "signed_out"})
                        return
                    checked = time.monotonic()
                try:
                    await asyncio.wait_for(news.wait(), self._beat)
                except TimeoutError:
                    yield event("beat", {"problem": self.problem})
        finally:
            self._open[name] -= 1
            self._open += Counter()  # without those at 0

    async def _missing(self, viewer: Viewer, place: Place) -> AsyncIterator[bytes]:
        """What somebody at `place` has not got yet, in pieces; the place moves on with them."""
        deltas = None if place.number is None else self.board.since(place.number)
        if deltas is None:
            number, parts = await run_in_threadpool(self.board.snapshot, viewer)
            for part in parts:
                for begin in range(0, len(part), CHUNK):
                    yield part[begin : begin + CHUNK]
            place.number = number
            return
        for delta in deltas:
            yield self.board.change(delta, viewer)
            place.number = delta.number
        if not deltas:
            yield event("beat", {"problem": self.problem, "at": self.board.at})

    async def _look(self) -> None:
        while self.streams:
            begin = time.monotonic()
            try:
                await run_in_threadpool(self.board.look)
                self.problem = None
            except GPUSpawnerError as error:
                self.problem = error.message
            except Exception:
                log.exception("the page's look at the fleet failed")
                self.problem = "The service could not look at the cards; its log says why."
            news, self._news = self._news, asyncio.Event()
            news.set()
            took = time.monotonic() - begin
            await asyncio.sleep(max(self._interval - took, took / DUTY - took, 0.05))
