"""Calls to a driver that may never return, made so that nobody waits for long.

A driver that hangs holds its caller in the kernel, where nothing can interrupt it, and a lock around it would hold
everybody else. So one thread makes all calls, in the order in which they were asked for, and whoever asks waits for a
bounded time. Once a call has been under way for that long, others are told at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from gpuspawner.node.drivers.base import DriverError

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Seconds that anybody waits for a driver. The slowest call of a sound one (making a MIG slice) takes less.
PATIENCE = 3.0


class Patience:
    """Makes calls to one driver. Thread-safe. `name`: of the driver, for people."""

    def __init__(self, name: str, seconds: float = PATIENCE, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._seconds = seconds
        self._clock = clock
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._began: float | None = None
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(
        self, do: Callable[[], T], late: Callable[[T], object] | None = None, *, seconds: float | None = None
    ) -> T:
        """What `do` returns or raises. Raises DriverError where the driver keeps it waiting.

        `do` may have its effect after that if it had begun; `late` is then called with what it returned. `seconds`: to
        wait longer than for other calls.
        """
        if self.silent():
            raise self._error()
        future: Future[T] = Future()
        settled = threading.Lock()  # between an answer that comes and a caller that leaves
        left = False

        def make() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = do()
            except BaseException as error:
                future.set_exception(error)
                return
            with settled:
                if not left:
                    future.set_result(result)
                    return
            if late is not None:
                late(result)

        self._calls.put(make)
        self._run()
        try:
            return future.result(self._seconds if seconds is None else seconds)
        except TimeoutError:
            with settled:
                if future.done():  # it came in the last moment, or the error is the driver's own
                    return future.result()
                left = True
                future.cancel()
            raise self._error() from None

    def silent(self) -> bool:
        """Whether a call has been waiting for an answer for too long."""
        began = self._began
        return began is not None and self._clock() - began >= self._seconds

    def _error(self) -> DriverError:
        return DriverError(f"{self._name} has not answered for {self._seconds:.0f} s. Try again when it does.")

    def _run(self) -> None:
        if self._thread is None:
            with self._start:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                    self._thread.start()

    def _work(self) -> None:
        while True:
            make = self._calls.get()
            self._began = self._clock()
            try:
                make()
            except Exception:
                log.exception("what the driver did too late could not be undone")
            self._began = None
            del make  # and what it holds, while the next one is waited for
