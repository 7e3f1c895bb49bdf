"""A training run that is resumed where it was."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from gpuspawner_runtime import elastic
from gpuspawner_runtime.autocheckpoint import Checkpointer
from gpuspawner_runtime.checkpoint.parts import Parts
from gpuspawner_runtime.checkpoint.place import place_of
from gpuspawner_runtime.errors import RuntimeFault
from gpuspawner_runtime.feed import Feed
from gpuspawner_runtime.report import Account, Report
from gpuspawner_runtime.steps import Stepper, StepResult

#: The runs of this process, by where their checkpoints lie: a cell that runs again finds its own.
_RUNS: dict[Any, Run] = {}


class Run:
    """What `run` gives. Use it in a `with`, iterate over it for batches, call `step` with each loss.

    `steps`: batches over the run's whole life. `epoch`: epochs done. `resumed`: the checkpoint it began with, or
    None. `alarm`: a sentence while checkpoints cannot be saved, or None. `state`: your own values, saved along.
    """

    def __init__(
        self,
        name: str,
        given: dict[str, Any],
        *,
        accumulate: int = 1,
        clip: float | None = None,
        epochs: int = 1,
        **options: Any,
    ) -> None:
        self.name, self.given = name, given
        self.model, self.optimizer, self.loader = given["model"], given["optimizer"], given["loader"]
        self.epochs_wanted = _whole("epochs", epochs)
        self.stepper = Stepper(self.model, self.optimizer, given["scheduler"], given["scaler"], accumulate, clip)
        self.feed = Feed(self.loader) if self.loader is not None else None
        self.state: dict[str, Any] = given["state"] if given["state"] is not None else {}
        others = {
            "stepper": self.stepper,
            "scheduler": given["scheduler"],
            "loader": self.feed,
            **(given["parts"] or {}),
        }
        self.saver = Checkpointer(name, Parts(self.model, self.optimizer, others, self.state), **options)
        self._one_epoch = False
        self._began = time.monotonic()
        self._seconds = 0.0
        self._account = Account()
        self._account.start()

    # -- a run is a context

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.feed is not None:
            self.feed.settle()
        done = self.feed is None or self.feed.epoch >= self.epochs_wanted
        stopped = error is None or isinstance(error, KeyboardInterrupt)
        self.close("failed" if not stopped else "ended" if done else "paused")

    def close(self, status: str = "paused") -> None:
        """Save what is not saved yet and give the run free; the objects go on as they are. Twice is once."""
        if not self.saver.closed:
            self.saver.close(status)
            self._seconds += time.monotonic() - self._began
            self._account.stop()

    def fits(self, given: dict[str, Any]) -> bool:
        """Whether a cell that runs again gives what this run has."""
        return all(self.given[name] is each for name, each in given.items() if name not in ("loader", "state"))

    def go_on(self, given: dict[str, Any], epochs: int) -> None:
        """The cell runs again: neither load nor compile anything again."""
        self.epochs_wanted = _whole("epochs", epochs)
        if given["loader"] is not self.loader and given["loader"] is not None and self.feed is not None:
            feed = Feed(given["loader"])
            feed.load_state_dict(self.feed.state_dict())
            self.loader, self.feed = given["loader"], feed
            self.saver.parts.others["loader"] = feed
        if self.saver.closed:
            self.saver.reopen()
            self._began = time.monotonic()
            self._account = Account()
            self._account.start()

    # -- the loop

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left: of all epochs, or within `epochs()` of one."""
        if self.feed is None:
            raise RuntimeFault("The run has no loader: give run(..., loader=...) or use step alone.", field="loader")
        self._opened()
        feed, one = self.feed, self._one_epoch
        feed.settle()
        if feed.epoch >= self.epochs_wanted and not one:
            print(f"{self.name}: all {self.epochs_wanted} epochs are done; epochs=N with a larger N goes on.")
        begun = feed.epoch
        while feed.epoch < self.epochs_wanted and (not one or feed.epoch == begun):
            self.saver.notices.busy = True
            try:
                for batch in feed.batches():
                    yield batch
                    self.saver.notices.busy = True
            finally:
                self.saver.notices.busy = False

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """`for epoch in r.epochs(3): for batch in r: ...`: the epochs that are left, each with what is left of it."""
        if self.feed is None:
            raise RuntimeFault("The run has no loader: give run(..., loader=...).", field="loader")
        if count is not None:
            self.epochs_wanted = _whole("epochs", count)
        self._one_epoch = True
        try:
            self.feed.settle()
            while self.feed.epoch < self.epochs_wanted:
                before = (self.feed.epoch, self.feed.batch)
                yield self.feed.epoch
                self.feed.settle()
                if (self.feed.epoch, self.feed.batch) == before:
                    raise RuntimeFault(
                        "epochs() goes with `for batch in r:` inside, which did not run.", code="usage", field="epochs"
                    )
        finally:
            self._one_epoch = False

    def step(self, loss: Any) -> StepResult:
        """Take the loss of a batch: backward, and when due clip, optimizer, scheduler; count; save when due."""
        self._opened()
        self.saver.notices.busy = True
        result = self.stepper.step(loss)
        self._count()
        return result

    def count(self, loss: Any = None) -> StepResult:
        """Count a step that called backward and the optimizer itself."""
        self._opened()
        result = self.stepper.count(loss)
        self._count()
        return result

    def _count(self) -> None:
        if not self.stepper.more:
            self.saver.step()

    def _opened(self) -> None:
        if self.saver.closed:
            raise RuntimeFault(
                f"The run {self.name!r} is closed: start it again with run({self.name!r}, …).", code="closed"
            )

    # -- what is known of it

    @property
    def steps(self) -> int:
        return self.saver.steps

    @property
    def epoch(self) -> int:
        return 0 if self.feed is None else self.feed.epoch

    @property
    def resumed(self) -> str | None:
        return self.saver.resumed

    @property
    def alarm(self) -> str | None:
        return self.saver.alarm

    def save(self, name: str | None = None, wait: bool = True) -> str | None:
        """Save now, under a name of your own; see `Checkpointer.save`."""
        self._opened()
        return self.saver.save(name, wait)

    def on_resize(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Call `function(resize)` between two steps when the share has changed."""
        return elastic.on_resize(function)

    def report(self) -> Report:
        """What the run did in this process, and what it used."""
        running = 0.0 if self.saver.closed else time.monotonic() - self._began
        figures = {
            "run": self.name,
            "steps": self.steps,
            "updates": self.stepper.updates,
            "skipped": self.stepper.skips,
            "lost_steps": self.saver.lost_steps,
            "lost_seconds": self.saver.lost_seconds,
            "stall_seconds": self.saver.stall_seconds,
            "seconds": self._seconds + running,
            "checkpoints": self.saver.saves,
        }
        return Report(**{**figures, **self._account.figures()})


def run(
    name: str,
    *,
    model: Any,
    optimizer: Any,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Any = None,
    state: dict[str, Any] | None = None,
    parts: dict[str, Any] | None = None,
    epochs: int = 1,
    accumulate: int = 1,
    clip: float | None = None,
    store: str | os.PathLike[str] | None = None,
    keep: int = 3,
    every: float | None = None,
    title: str | None = None,
    fresh: bool = False,
) -> Run:
    """Start the run `name`, or resume it exactly where its newest verified checkpoint is.

    `loader`: what gives batches, `epochs` times. `accumulate`: batches for each update. `clip`: largest norm of the
    gradients. `state`, `parts`, `store`, `keep`, `every`, `title`, `fresh`: as `autocheckpoint` has them.

    A cell that runs again finds its run: with the same model and optimizer it goes on in memory and nothing is loaded
    or compiled anew; with new ones they are filled from the newest checkpoint. Raises `RuntimeFault`.
    """
    given = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "loader": loader,
        "state": state,
        "parts": parts,
    }
    key = place_of(name, store)
    known = _RUNS.get(key)
    if known is not None and not fresh and known.fits(given):
        known.go_on(given, epochs)
        return known
    if known is not None:
        known.close()
    made = Run(
        name,
        given,
        accumulate=accumulate,
        clip=clip,
        epochs=epochs,
        store=store,
        keep=keep,
        every=every,
        title=title,
        fresh=fresh,
    )
    _RUNS[key] = made
    return made


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RuntimeFault(
            f"{name}: {value!r} is not a whole number from 1 on.", field=name, given=value, allowed=">= 1"
        )
    return value
