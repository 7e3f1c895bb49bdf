"""One sampler thread for all widgets of a kernel, which runs only while somebody looks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

#: Seconds between two samples.
INTERVAL = 1.0
#: Seconds that a view counts as looked at after it last said so. Views say so every ten seconds.
PATIENCE = 30.0
#: Views that are remembered for one widget.
MOST_VIEWS = 32


class Watched(Protocol):
    """What a pulse keeps up to date."""

    def refresh(self, figures: dict[str, Any]) -> None:
        """Take over new figures; called in the sampler's thread."""


class Pulse:
    """Samples once a second while a view is looked at; the thread ends by itself when none is.

    Views say "watch" through the kernel, which hears nothing while a cell runs (unless the page uses subshells).
    So nobody's time runs out during a cell.
    """

    def __init__(
        self,
        sample: Callable[[], dict[str, Any]],
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sample = sample
        self._interval = interval
        self._clock = clock
        self._changed = threading.Condition()
        self._views: dict[Watched, dict[str, float]] = {}
        self._cells = 0
        self._wanted = False
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether samples are being taken."""
        return self._thread is not None and self._thread.is_alive()

    def watch(self, widget: Watched, view: str, seconds: float = PATIENCE) -> None:
        """Somebody looks at this view of this widget, for so long from now."""
        with self._changed:
            views = self._views.setdefault(widget, {})
            if view not in views:  # somebody new does not wait for the next turn
                self._wanted = True
                self._changed.notify_all()
            if view in views or len(views) < MOST_VIEWS:
                views[view] = self._clock() + seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gpuspawner-widget", daemon=True)
                self._thread.start()

    def unwatch(self, widget: Watched, view: str | None = None) -> None:
        """Nobody looks at this view any more; without a name: at no view of this widget."""
        with self._changed:
            views = self._views.get(widget, {})
            if view is None:
                views.clear()
            views.pop(view or "", None)
            self._changed.notify_all()

    def nudge(self) -> None:
        """Sample now rather than at the next turn, for instance after a resize."""
        with self._changed:
            self._wanted = True
            self._changed.notify_all()

    def cell_begins(self, *_: object) -> None:
        """IPython's pre_run_cell."""
        with self._changed:
            self._cells += 1

    def cell_ends(self, *_: object) -> None:
        """IPython's post_run_cell: what views said meanwhile is about to be heard."""
        with self._changed:
            self._cells = max(0, self._cells - 1)
            later = self._clock() + PATIENCE
            for views in self._views.values():
                views.update({view: max(until, later) for view, until in views.items()})

    def _run(self) -> None:
        while True:
            started = self._clock()
            with self._changed:
                self._wanted = False
            figures = self._sample()
            with self._changed:
                if not self._watched():
                    # Under the lock, so that whoever comes to watch now starts another thread.
                    self._thread = None
                    return
                widgets = list(self._views)
            for widget in widgets:
                widget.refresh(figures)
            with self._changed:
                pause = max(0.05, self._interval - (self._clock() - started))
                self._changed.wait_for(lambda: self._wanted or not self._watched(), pause)

    def _watched(self) -> bool:
        """Whether anybody looks; forgets views whose time is over."""
        now = self._clock()
        if not self._cells:
            for views in self._views.values():
                for view in [view for view, until in views.items() if until < now]:
                    del views[view]
        self._views = {widget: views for widget, views in self._views.items() if views}
        return bool(self._views)
