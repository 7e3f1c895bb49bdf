"""What the GPU panel sees of a run, and what it asks for: the run's state file kept up to date, its requests taken."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

from gpuspawner_runtime.checkpoint.remote import Remote
from gpuspawner_runtime.checkpoint.store import Entry, Store
from gpuspawner_runtime.state_file import StateFile, now

_LOOK_EVERY = 0.5


class Panel:
    """The panel's side of one run. A thread of its own looks for requests: pins are done at once, the newest wish to go
    back waits in `wanted` until the training is between two steps. Of several processes one is `shown`."""

    def __init__(self, name: str, title: str | None, store: Store, remote: Remote | None, shown: bool = True) -> None:
        self.name, self._shown = name, shown
        self.status = "running"
        #: a sentence while checkpoints cannot be saved
        self.alarm: str | None = None
        #: when the next checkpoint is due, by `time.monotonic`
        self.next_due: float | None = None
        #: whether a checkpoint was read back and was as it should be, by name
        self.verified: dict[str, bool] = {}
        self.wanted: dict[str, Any] | None = None
        self._store, self._remote = store, remote
        self._file = StateFile(name, title)
        self._guard = threading.Lock()
        self._ended = threading.Event()

    def start(self) -> None:
        """Look for requests until `stop`, or until nobody has this object any more."""
        self._ended = threading.Event()
        thread = threading.Thread(target=_attend, args=(weakref.ref(self), self._ended), daemon=True)
        thread.name = "checkpoint-panel"
        thread.start()

    def stop(self) -> None:
        """Look no longer."""
        self._ended.set()

    def look(self) -> None:
        """Take the requests that wait."""
        for request in self._file.take():
            if not self._pin(request):
                self.wanted = request
            self.publish()

    def take_wish(self) -> dict[str, Any] | None:
        """The wish to go back that waits, once."""
        wish, self.wanted = self.wanted, None
        return wish

    def asked_before(self) -> Entry | None:
        """While the run is being opened: do the requests that waited for it; the checkpoint to begin with, if they
        name one that can be used."""
        wishes = [each for each in self._file.take() if not self._pin(each)]
        if not wishes:
            return None
        entry, problem = self.find(wishes[-1])
        self._file.answer(wishes[-1], problem)
        return entry

    def find(self, request: dict[str, Any]) -> tuple[Entry | None, str | None]:
        """The checkpoint that a request names, and what is wrong with it; without a checkpoint something is."""
        entry = next((each for each in self._store.entries() if each.name == request["checkpoint"]), None)
        problem = "There is no such checkpoint any more." if entry is None else self._store.problem(entry)
        return (entry if problem is None else None), problem

    def answer(self, request: dict[str, Any], problem: str | None) -> None:
        """Say what became of a request."""
        self._file.answer(request, problem)
        self.publish()

    def raise_alarm(self, sentence: str) -> None:
        """Say that checkpoints cannot be saved: once in the notebook, and in the panel until it is over."""
        if sentence != self.alarm:
            print(f"{self.name}: {sentence} Training goes on; the last good checkpoint is kept.")
        self.alarm = sentence
        self.publish()

    def publish(self) -> None:
        """Write the state file, if this process is the one that is shown."""
        if not self._shown:
            return
        with self._guard:
            rows = [
                {
                    "name": entry.name,
                    "step": entry.step,
                    "bytes": entry.bytes,
                    "saved": entry.saved,
                    "verified": self.verified.get(entry.name),
                    "pinned": entry.pinned,
                }
                for entry in self._store.entries()
            ]
            due = self.next_due if self.status == "running" else None
            self._file.write(self.status, rows, None if due is None else now(due - time.monotonic()), self.alarm)

    def _pin(self, request: dict[str, Any]) -> bool:
        """Do a request to pin or unpin; False for one of another kind."""
        if request["action"] == "restore":
            return False
        problem = None
        try:
            self._store.pin(request["checkpoint"], request["action"] == "pin")
            if self._remote is not None:
                self._remote.pin(request["checkpoint"], request["action"] == "pin")
        except KeyError:
            problem = "There is no such checkpoint any more."
        except Exception as error:  # a store may fail in any way of its own
            problem = f"It could not be done: {error}"[:300]
        self._file.answer(request, problem)
        return True


def _attend(panel: weakref.ref[Panel], ended: threading.Event) -> None:
    while not ended.wait(_LOOK_EVERY):
        if (found := panel()) is None:
            return
        found.look()
        del found
