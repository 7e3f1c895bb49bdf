"""What asks a training to stop: SIGTERM, Ctrl-C, a preemption notice. It is saved first, when its state is whole.

A notice is a file that appears or changes (`GPUSPAWNER_PREEMPTION_FILE`) or a signal (`GPUSPAWNER_PREEMPTION_SIGNAL`,
e.g. `SIGUSR1`, as batch systems send one before they stop a job). After a notice the training goes on; what stops it
comes by SIGTERM. Handlers that the program had are called afterwards.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from gpuspawner_runtime.errors import RuntimeFault

#: What a notice asks for; the greatest wins where ranks differ.
NOTHING, NOTICE, INTERRUPT, TERMINATE = 0, 2, 3, 4
#: Seconds that a step may take to end after Ctrl-C or SIGTERM.
GRACE = {signal.SIGINT: 3.0, signal.SIGTERM: 20.0}
_LOOK_EVERY = 0.5


class Notices:
    """Listens while installed. `busy`: a step is under way, and what is asked for waits for its end. Otherwise, and
    when it is asked twice or a step does not end, `act()` is called in the main thread, which saves if it can."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.busy = False
        self.pending = NOTHING
        self._act = act
        self._before: dict[int, Any] = {}
        self._file = os.environ.get("GPUSPAWNER_PREEMPTION_FILE")
        self._seen = self._mark()
        self._looked = 0.0
        self._signal = _named(os.environ.get("GPUSPAWNER_PREEMPTION_SIGNAL"))
        self._timer: threading.Timer | None = None

    def install(self) -> None:
        """Take over the signals; only the main thread can. Without that, only files are noticed."""
        if threading.current_thread() is not threading.main_thread() or self._before:
            return
        for number in filter(None, (signal.SIGTERM, signal.SIGINT, self._signal)):
            self._before[number] = signal.signal(number, self._on_signal)

    def remove(self) -> None:
        """Give the signals back, unless somebody else took them meanwhile."""
        self._stop_timer()
        if threading.current_thread() is threading.main_thread():
            for number, before in self._before.items():
                if signal.getsignal(number) == self._on_signal:
                    signal.signal(number, before if before is not None else signal.SIG_DFL)
            self._before.clear()

    def look(self) -> int:
        """What is asked for now. A notebook sets SIGINT anew for each cell: here it is taken over again."""
        if self._before and signal.getsignal(signal.SIGINT) != self._on_signal:
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._on_signal)
        now = time.monotonic()
        if self._file and now - self._looked >= _LOOK_EVERY:
            self._looked = now
            mark = self._mark()
            if mark is not None and mark != self._seen:
                self.pending = max(self.pending, NOTICE)
            self._seen = mark
        if self.pending:
            self._stop_timer()  # the step has ended in time; the save that follows takes what it takes
        return self.pending

    def done(self) -> None:
        """The state was saved: go on with what was asked for. Raises KeyboardInterrupt where that is the way of it."""
        pending, self.pending = self.pending, NOTHING
        self._stop_timer()
        if pending in (INTERRUPT, TERMINATE):
            self._chain(signal.SIGINT if pending == INTERRUPT else signal.SIGTERM)

    def _mark(self) -> int | None:
        if self._file:
            with contextlib.suppress(OSError):
                return Path(self._file).stat().st_mtime_ns
        return None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        wish = {signal.SIGINT: INTERRUPT, signal.SIGTERM: TERMINATE}.get(signal.Signals(number), NOTICE)
        again = wish in (INTERRUPT, TERMINATE) and self.pending >= wish
        self.pending = max(self.pending, wish)
        if not self.busy or again:
            self._act()
            self.done()
        elif wish != NOTICE:
            self._timer = threading.Timer(GRACE[signal.Signals(number)], self._overdue, (number,))
            self._timer.daemon = True
            self._timer.start()

    def _overdue(self, number: int) -> None:
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, number)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _chain(self, number: int) -> None:
        before = self._before.get(number)
        if callable(before):
            before(number, None)
        elif before == signal.SIG_DFL or number not in self._before:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _named(name: str | None) -> int | None:
    if not name:
        return None
    try:
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except KeyError:
        raise RuntimeFault(
            f"GPUSPAWNER_PREEMPTION_SIGNAL: {name!r} is no signal; e.g. SIGUSR1.",
            field="GPUSPAWNER_PREEMPTION_SIGNAL",
            given=name,
        ) from None
