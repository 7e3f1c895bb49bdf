"""Checkpoints of a training loop of any form: `autocheckpoint(...)`, then `step()` after each step."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import threading
import time
import weakref
from collections import deque
from functools import partial
from types import TracebackType
from typing import Any, Self

from gpuspawner_runtime.checkpoint import find, rng
from gpuspawner_runtime.checkpoint.client import WriterProcess
from gpuspawner_runtime.checkpoint.interval import Pace, checked
from gpuspawner_runtime.checkpoint.lock import RunLock
from gpuspawner_runtime.checkpoint.opened import Opened
from gpuspawner_runtime.checkpoint.panel import Panel
from gpuspawner_runtime.checkpoint.parts import Parts
from gpuspawner_runtime.checkpoint.place import place_of
from gpuspawner_runtime.checkpoint.remote import Remote
from gpuspawner_runtime.checkpoint.staging import Copying, Layout, Snapshot, Workspace
from gpuspawner_runtime.checkpoint.store import NAME, Entry, Skipped, Store
from gpuspawner_runtime.checkpoint.tree import Split
from gpuspawner_runtime.errors import RuntimeFault
from gpuspawner_runtime.notices import INTERRUPT, Notices
from gpuspawner_runtime.ranks import Ranks

_DUE = 1
#: The first checkpoint, from which the cost of one is known, is due after this many seconds.
_FIRST = 5.0


class Checkpointer:
    """What `autocheckpoint` gives. `steps` counts `step()` over all of the run's life; `resumed` is the checkpoint
    that it began with, or None; `alarm` a sentence while checkpoints cannot be saved."""

    def __init__(
        self,
        name: str,
        parts: Parts,
        *,
        store: str | os.PathLike[str] | None = None,
        keep: int = 3,
        every: float | None = None,
        title: str | None = None,
        fresh: bool = False,
        steps_alone: bool = False,
    ) -> None:
        self.name, self.parts = name, parts
        folder, url = place_of(name, store)
        self.keep, every = checked(keep, every)
        self._pace = Pace(every)
        self.steps = 0
        self.resumed: str | None = None
        self.skipped: list[Skipped] = []
        self.stall_seconds = 0.0
        self.saves = 0
        self.lost_steps: int | None = 0
        self.lost_seconds: float | None = 0.0
        self._store, self._url = Store(folder), url
        self._opened = Opened(folder)
        self._remote = Remote(url, name) if url else None
        self._trained, self._failures = 0.0, 0
        self._began = time.monotonic()
        self._step_times: deque[float] = deque(maxlen=20)
        self._last_step = time.monotonic()
        self._guard = threading.RLock()
        self._told = threading.Condition(self._guard)
        self._workspace = Workspace()
        self._copying: Copying | None = None
        self._careful = False  # the next snapshot is taken at a stop
        self._saved_at = -1
        self._saving = False
        self._steps_alone = steps_alone  # nobody says when a step begins: one is under way at any time
        self._jobs = 0
        self._outcomes: dict[int, str | None] = {}
        self._lock: RunLock | None = None
        self._writer: WriterProcess | None = None
        self.notices = Notices(self._save_now)
        self.ranks = Ranks()
        self.panel = Panel(name, title, self._store, self._remote, shown=self.ranks.rank == 0)
        self._open(fresh)

    # -- opening and closing

    def _open(self, fresh: bool) -> None:
        first = self.ranks.rank == 0
        problem = None
        if first:
            try:
                self._lock = RunLock(self._store.folder, self.name)
            except RuntimeFault as fault:
                problem = fault
        problem = self.ranks.from_first(problem)
        if problem is not None:
            raise problem
        keep_open = (self._lock.descriptor,) if self._lock is not None else ()
        self._writer = WriterProcess(self._on_event, keep_open)
        mine = weakref.WeakMethod(self.close)
        self._at_exit = lambda: (close := mine()) and close()
        try:
            if not fresh:
                self._resume()
            elif first:
                self._failures = 0
            Split(self._tree())  # what cannot be saved is said now, and not when the first checkpoint is due
            if first:
                self.panel.look()  # also in a run that is open for a moment only
                self._opened.open(self.steps, self._trained)
                self.panel.start()
        except BaseException:
            self._let_go()
            raise
        atexit.register(self._at_exit)
        self.parts.before_update(self._before_update)
        self.notices.busy = False
        self.notices.install()
        self.parts.step_ended()
        self.next_due = time.monotonic() + (self._pace.every or _FIRST)
        self.panel.publish()

    @property
    def alarm(self) -> str | None:
        return self.panel.alarm

    @property
    def next_due(self) -> float:
        """When the next checkpoint is due, by `time.monotonic`."""
        return self.panel.next_due or 0.0

    @next_due.setter
    def next_due(self, moment: float) -> None:
        self.panel.next_due = moment

    @property
    def _trained_so_far(self) -> float:
        """Seconds, over the whole life of the run."""
        return self._trained + time.monotonic() - self._began

    @property
    def closed(self) -> bool:
        return self._writer is None

    def reopen(self) -> bool:
        """Go on after `close` with what is in memory; False if another process has trained the run meanwhile, and the
        newest checkpoint was loaded instead."""
        if not self.closed:
            return True
        here = self._saved_at == self.steps
        newest = max((entry.serial for entry in self._store.entries()), default=0)
        same = here and newest == self._serial
        self.panel.status, self.panel.alarm = "running", None
        self._began = time.monotonic()
        self._open(fresh=same)
        return same

    def close(self, status: str = "ended", save: bool = True) -> None:
        """Save what is not saved yet, let the writer finish, give the run free. Twice is once."""
        if self.closed:
            return
        try:
            if save and self._unsaved and self.clean:
                self.save(wait=True)
            self._wait_copied()
        finally:
            self.panel.status = status
            self._trained = self._trained_so_far
            self._let_go()
            atexit.unregister(self._at_exit)
            if self.ranks.rank == 0:
                self._opened.close()
                self.panel.publish()

    def _let_go(self) -> None:
        self.panel.stop()
        self.notices.remove()
        self.parts.before_update(None)
        if self._writer is not None:
            writer, self._writer = self._writer, None
            if not writer.wait_idle(0.5):
                print(f"{self.name}: waiting for the last checkpoint to be written")
            writer.close()
        self._workspace.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("ended" if error is None else "paused" if isinstance(error, KeyboardInterrupt) else "failed")

    # -- resuming

    def _resume(self) -> None:
        found = None
        if self.ranks.rank == 0:
            found = find.newest(self._store, self._remote)
            found.entry = self.panel.asked_before() or found.entry
            for each in found.skipped:
                print(f"{self.name}: skipped {each.name}: {each.reason}")
        found = self.ranks.from_first(found)
        assert found is not None
        self.skipped = found.skipped
        if found.entry is not None:
            self._load(found.entry)
            self.resumed = found.entry.name
            self._failures = int(found.entry.manifest.get("failures") or 0)
            self._trained = float(found.entry.manifest.get("trained") or 0.0)
        if self.ranks.rank == 0:
            if self._opened.left():
                self._failures += 1
                reached = self._opened.reached()
                self.lost_steps = None if reached is None else max(0, reached[0] - self.steps)
                self.lost_seconds = None if reached is None else max(0.0, reached[1] - self._trained)
            if self.resumed is not None:
                print(f"{self.name}: goes on from {self.resumed}, step {self.steps}")

    def _load(self, entry: Entry) -> None:
        rank = self.ranks.rank
        same = entry.world == self.ranks.world
        shared = find.load(entry, 0)
        mine = shared if rank == 0 else find.load(entry, rank) if same else shared
        if not same and rank == 0:
            print(
                f"{self.name}: {entry.name} is of {entry.world} processes and there are {self.ranks.world} now. Model "
                "and optimizer are as saved, the rest of the epoch is divided anew; random numbers differ from here on."
            )
        self.parts.load(shared, mine, entry.world, self.ranks.world, rank)
        self.steps = int(shared["meta"]["steps"])
        rng.restore(mine["rng"])
        if not same and rank:
            rng.shift(rank)
        self.parts.step_ended()
        self._saved_at, self._serial = self.steps, entry.serial
        self.panel.verified[entry.name] = True

    _serial = 0

    # -- the loop

    @property
    def _unsaved(self) -> bool:
        return self.steps > 0 and self._saved_at != self.steps and not self._saving

    @property
    def clean(self) -> bool:
        """Whether the state is that of the end of a step."""
        return not self.notices.busy or self.parts.unchanged()

    def step(self) -> None:
        """A step is done: save if that is due, do what the panel or a signal asked for. At all ranks alike."""
        if self.closed:
            raise RuntimeFault(
                f"The run {self.name!r} is closed: start it again with run or autocheckpoint.", code="closed"
            )
        self.steps += 1
        moment = time.monotonic()
        self._step_times.append(moment - self._last_step)
        self._last_step = moment
        self._opened.count(self.steps, self._trained_so_far)
        if not self._workspace.begun:  # at the first step, when the optimizer has its state
            self._workspace.prepare(Layout(Split(self._tree())).skeleton)
        wish = self.notices.look()
        if not wish and self.ranks.rank == 0 and self._due(moment):
            wish = _DUE
        agreed = self.ranks.agree(wish, self._step_times[-1])
        self.parts.step_ended()
        self.notices.busy = True  # a signal during a save waits for its end
        if agreed:
            self._attend(agreed)
        self.notices.busy = self._steps_alone
        if self.ranks.world == 1 and self.notices.pending:
            self._attend(self.notices.pending)
        self._last_step = time.monotonic()

    def _due(self, moment: float) -> bool:
        if self.panel.wanted is not None:
            return True
        assert self._writer is not None
        return moment >= self.next_due and self._writer.idle

    def _attend(self, wish: int) -> None:
        request = self.ranks.from_first(self.panel.take_wish())
        if request is not None:
            self._go_back(request)
        elif wish >= INTERRUPT:
            self.save(wait=True)
        else:
            self.save()
        if wish > _DUE:
            self.notices.pending = max(self.notices.pending, wish)
            self.notices.done()

    def _save_now(self) -> None:
        """From a signal's handler, between two steps or in the middle of a long one."""
        if self.ranks.world == 1 and not self.closed and self._unsaved and self.clean:
            with contextlib.suppress(RuntimeFault):
                self.save(wait=True)

    # -- saving

    @property
    def _writing(self) -> bool:
        return self._writer is not None and not self._writer.idle

    def wait(self) -> None:
        """Until nothing is being copied, written or verified."""
        self._wait_copied()
        if self._writer is not None:
            self._writer.wait_idle()

    @property
    def idle(self) -> bool:
        """Whether nothing is being copied or written."""
        return (self._copying is None or self._copying.whole is not None) and (
            self._writer is None or self._writer.idle
        )

    @property
    def writer_pid(self) -> int | None:
        return None if self._writer is None else self._writer.pid

    def save(self, name: str | None = None, wait: bool = False) -> str | None:
        """Save now; `wait`: until it is durable. Returns the checkpoint's name, or None if it failed (see `alarm`).
        Every rank must call it at the same step."""
        if name is not None and not NAME.fullmatch(name):
            raise RuntimeFault(f"name: {name!r:.60} is no name for a checkpoint.", field="name", given=name)
        if self._saving:
            return None
        self._saving = True
        try:
            return self._save(name, wait)
        finally:
            self._saving = False

    def _save(self, name: str | None, wait: bool) -> str | None:
        assert self._writer is not None
        began = time.monotonic()
        careful = self._careful or wait
        self._wait_copied()
        self._writer.wait_idle()
        label = None
        if self.ranks.rank == 0:
            self._serial = max(self._serial, self._store.next_serial() - 1) + 1
            label = (self._store.free_name(name or f"step-{self.steps}"), secrets.token_hex(4), self._serial, careful)
        label, token, self._serial, careful = self.ranks.from_first(label)
        self._careful = False
        waited = time.monotonic()
        try:
            room = partial(self._workspace.fitting, share=self._writer.share)
            snapshot = Snapshot(room, self._tree(), (lambda _: False) if careful else self.parts.late)
        except (RuntimeFault, MemoryError) as problem:
            self.panel.raise_alarm(f"The snapshot failed: {problem}")
            self._plan()
            return None
        self._jobs += 1
        job = self._job(snapshot, self._jobs, label, token)
        self._saved_at = self.steps
        self._copying = Copying(snapshot, lambda whole: self._send(job, whole))
        if careful:
            self._wait_copied()
        self._pace.stalled(time.monotonic() - waited)
        self.stall_seconds += time.monotonic() - began
        self._plan()
        if not wait:
            return str(label)
        with self._told:
            self._told.wait_for(lambda: job["id"] in self._outcomes or not self._writing)
        outcome = self._outcomes.get(job["id"], "its writer ended")
        return str(label) if self.ranks.all_true(outcome is None) else None

    def _tree(self) -> dict[str, Any]:
        busy = self.notices.busy
        meta = {"steps": self.steps, "world": self.ranks.world}
        return {"meta": meta, "rng": self.parts.random(busy), **self.parts.tree(shared=self.ranks.rank == 0)}

    def _job(self, snapshot: Snapshot, number: int, label: str, token: str) -> dict[str, Any]:
        rank, layout = self.ranks.rank, snapshot.layout
        return {
            "id": number,
            "run": self.name,
            "folder": str(self._store.folder),
            "name": label,
            "token": token,
            "serial": self._serial,
            "step": self.steps,
            "world": self.ranks.world,
            "rank": rank,
            "keep": self.keep,
            "url": self._url,
            "trained": self._trained_so_far,
            "failures": self._failures,
            "torn": False,
            "parts": [
                {"name": f"rank-{rank}.safetensors", "begin": 0, "bytes": layout.tensors},
                {"name": f"rank-{rank}.pt", "begin": layout.skeleton, "bytes": snapshot.skeleton_bytes},
            ],
        }

    def _send(self, job: dict[str, Any], whole: bool) -> None:
        """On the copying thread: hand a finished snapshot to the writer."""
        if not whole:
            # somebody changed weights outside of the optimizer's step: take the next snapshot at a stop, and soon
            self._careful, self.next_due, self._saved_at = True, time.monotonic(), -1
            job = {**job, "torn": True, "parts": []}
            if job["world"] == 1:
                return
        try:
            assert self._writer is not None
            self._writer.save(job)
        except RuntimeFault as fault:
            self._on_event(
                {"event": "failed", "id": job["id"], "name": job["name"], "code": "writer", "message": str(fault)}
            )

    def _before_update(self) -> None:
        if self._copying is not None and self._copying.whole is None:
            began = time.monotonic()
            self._copying.wait()
            stall = time.monotonic() - began
            self.stall_seconds += stall
            self._pace.stalled(stall)

    def _wait_copied(self) -> None:
        if self._copying is not None:
            self._copying.join()
            self._copying = None

    def _plan(self) -> None:
        self.next_due = time.monotonic() + self._pace.pause(self._trained_so_far, self._failures)

    # -- what the writer tells

    def _on_event(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind in ("progress", "mapped", "uploaded"):
            return
        if kind == "idle":
            with self._told:
                self._told.notify_all()
            return
        with self._guard:
            if kind in ("published", "written"):
                self._outcomes[event["id"]] = None
                self.saves += 1
                self.panel.alarm = None
                if kind == "published":
                    self._pace.took(event["seconds"])
            elif kind == "verified":
                self.panel.verified[event["name"]] = event["ok"]
                if not event["ok"]:
                    self.panel.raise_alarm(f"{event['name']} was not written as it should be: {event['message']}.")
            elif kind == "failed":
                self._outcomes[event["id"]] = event["message"]
                if event["code"] == "torn":
                    self._careful, self.next_due = True, time.monotonic()
                else:
                    self.panel.raise_alarm(f"{event['name'] or 'A checkpoint'} could not be saved: {event['message']}.")
                if event["code"] != "upload":
                    self._saved_at = -1
            for old in [number for number in self._outcomes if number is None or number < self._jobs - 8]:
                del self._outcomes[old]
            self._told.notify_all()
            self.panel.publish()

    # -- the panel

    def _go_back(self, request: dict[str, Any]) -> None:
        """Load the checkpoint that the panel asked for, into the training that runs."""
        self._wait_copied()
        found = self.panel.find(request) if self.ranks.rank == 0 else None
        entry, problem = self.ranks.from_first(found)
        if entry is not None:
            try:
                self._load(entry)
                self._saved_at = -1
                self._opened.count(self.steps, self._trained_so_far)
                print(f"{self.name}: back at {entry.name}, step {self.steps}, as asked")
            except RuntimeFault as fault:
                if fault.code != "foreign" or self.ranks.world > 1:
                    raise
                problem = fault.message  # nothing was changed
        self.panel.answer(request, problem)


def autocheckpoint(
    name: str,
    *,
    model: Any,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    state: Any = None,
    parts: dict[str, Any] | None = None,
    store: str | os.PathLike[str] | None = None,
    keep: int = 3,
    every: float | None = None,
    title: str | None = None,
    fresh: bool = False,
) -> Checkpointer:
    """Resume from the run's newest verified checkpoint, if there is one, and save from now on.

        saver = autocheckpoint("bert", model=model, optimizer=optimizer, state=progress)
        while saver.steps < 10_000:
            train_one_step()
            saver.step()
        saver.close()

    `state`: a dict of tensors and primitives of your own, filled in place on resume. `parts`: further objects with
    `state_dict` and `load_state_dict`, by name. `store`: a folder, or a URL that fsspec knows (checkpoints are then
    staged on the local disk first); default: a folder in the home, or GPUSPAWNER_CHECKPOINTS. `keep`: how many, beside
    pinned ones. `every`: seconds between two, 600 at most; default: by what one costs (see `checkpoint/interval.py`).
    `fresh`: begin anew. Raises `RuntimeFault`.
    """
    made = Parts(model, optimizer, {"scheduler": scheduler, "scaler": scaler, **(parts or {})}, state)
    return Checkpointer(name, made, store=store, keep=keep, every=every, title=title, fresh=fresh, steps_alone=True)
