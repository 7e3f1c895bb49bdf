"""A world that follows its share of a card: more memory, more vehicles, without a stop."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from gpuspawner_examples.driving.world import World

#: Of the memory that a share gives; the rest is for PyTorch's own, which differs by card.
_PART = 0.8


def allowed() -> int | None:
    """Bytes of card memory of this session's share; None outside of a hub, or without `gpuspawner_runtime`."""
    try:
        from gpuspawner_runtime.elastic import memory_allowed
    except ImportError:
        return None
    return memory_allowed()


class Spread:
    """Keeps as many vehicles for each byte of the share as there were when it was made: `check()` between two steps.

    With a larger share the world grows by the same factor, but to no more vehicles than fit by
    `World.bytes_for_each`. With a smaller share nobody vanishes: it does not grow again until there is room.
    `grown` has (step, vehicles before, vehicles after) of each growth.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.grown: list[tuple[int, int, int]] = []
        self._first = world.vehicles
        self._memory = allowed()
        try:
            from gpuspawner_runtime import elastic
        except ImportError:
            self._elastic: Any = None
        else:
            self._elastic = elastic
            elastic.on_resize(self._resized)

    def check(self) -> None:
        """Grow if the share has grown; else it costs one look into memory."""
        if self._elastic is not None:
            self._elastic.check()

    def close(self) -> None:
        """Follow the share no longer."""
        if self._elastic is not None:
            self._elastic.forget(self._resized)

    def _resized(self, resize: Any) -> None:
        self._memory = self._memory or resize.memory_before or resize.memory_after
        wanted = round(self._first * resize.memory_after / self._memory)
        wanted = min(wanted, self.world.fitting(int(resize.memory_after * _PART)))
        before = self.world.vehicles
        if wanted > before:
            self.world.grow(wanted - before)
            self.grown.append((self.world.steps, before, self.world.vehicles))


class Drive:
    """Steps a world in a thread of its own, so that the notebook can be used meanwhile: `with Drive(world) as drive:`.

    Between two steps it looks at the share (`Spread`), and calls `watch(world)` every `every` steps. `log` has for each
    step its number, the vehicles it moved, and the seconds since the start.
    """

    def __init__(self, world: World, watch: Callable[[World], Any] | None = None, every: int = 10) -> None:
        self.world, self.spread = world, Spread(world)
        self.log: deque[tuple[int, int, float]] = deque(maxlen=100_000)
        self._watch, self._every = watch, every
        self._told = threading.Condition()
        self._ending = False
        self._asked: deque[int] = deque()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="driving", daemon=True)

    def __enter__(self) -> Drive:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> Drive:
        """Begin; returns at once."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End after the step that is being computed. Raises what a step has raised."""
        self._ending = True
        self._thread.join()
        self.spread.close()
        if self._failed is not None:
            raise self._failed

    def grow(self, more: int) -> None:
        """Have `more` vehicles added before the next step; `World.grow` must not be called while this steps it."""
        self._asked.append(more)

    def wait(self, ready: Callable[[], bool], seconds: float = 600.0) -> None:
        """Return after the first step after which `ready()` is true. Raises TimeoutError, or what a step has raised."""
        with self._told:
            done = self._told.wait_for(lambda: ready() or not self._thread.is_alive(), seconds)
        if self._failed is not None:
            raise self._failed
        if not (done and ready()):
            raise TimeoutError(f"after {seconds:g} s, at step {self.world.steps}, it is not so")

    def _run(self) -> None:
        began = time.monotonic()
        try:
            while not self._ending:
                self.spread.check()
                while self._asked:
                    self.world.grow(self._asked.popleft())
                self.world.step()
                self.log.append((self.world.steps, self.world.vehicles, time.monotonic() - began))
                if self._watch is not None and self.world.steps % self._every == 0:
                    self._watch(self.world)
                with self._told:
                    self._told.notify_all()
        except BaseException as error:
            self._failed = error
        finally:
            with self._told:
                self._told.notify_all()
