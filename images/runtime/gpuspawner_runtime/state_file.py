"""The state file of a run, which the GPU panel reads, and the requests that it leaves.

The format is `docs/reference/runtime-state.md`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import deque
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpuspawner_runtime.priority import current as current_priority

FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}", re.ASCII)
ACTIONS = ("restore", "pin", "unpin")
_MOST_CHECKPOINTS = 200
_MOST_ANSWERS = 32
_LARGEST_REQUEST = 4096
_LONGEST_TEXT = 300


def runs_folder() -> Path:
    """Where state files stand, below the home."""
    return Path.home() / ".local/state/gpuspawner-runtime/runs"


def now(plus: float = 0.0) -> str:
    """A time `plus` seconds from now, as the format wants it."""
    return (datetime.now(UTC) + timedelta(seconds=plus)).isoformat(timespec="milliseconds")


class StateFile:
    """Writes one run's state and takes its requests."""

    def __init__(self, run: str, title: str | None = None) -> None:
        self.run, self.title = run, title
        self.folder = runs_folder() / run
        self._answers: deque[dict[str, Any]] = deque(maxlen=_MOST_ANSWERS)

    def write(
        self, status: str, checkpoints: list[dict[str, Any]], next_due: str | None, alarm: str | None = None
    ) -> None:
        """Write it whole. A home that cannot be written is no reason to stop the training."""
        body = {
            "format": FORMAT,
            "run": self.run,
            "title": self.title[:_LONGEST_TEXT] if self.title else None,
            "status": status,
            "pid": os.getpid(),
            "updated": now(),
            "next_due": next_due,
            "priority": current_priority(),
            "alarm": alarm[:_LONGEST_TEXT] if alarm else None,
            "checkpoints": checkpoints[-_MOST_CHECKPOINTS:],
            "answers": list(self._answers),
        }
        partial = self.folder / ".state.json"
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(body))
            partial.rename(self.folder / "state.json")

    def answer(self, request: dict[str, Any], problem: str | None) -> None:
        """Note what became of a request; shown with the next `write`."""
        self._answers.append({"id": request["id"], "outcome": "refused" if problem else "done", "message": problem})

    def take(self) -> list[dict[str, Any]]:
        """The requests that wait, each with `id`, `action` and `checkpoint`; their files are removed."""
        found = []
        try:
            names = sorted(path.name for path in (self.folder / "requests").iterdir())
        except OSError:
            return []
        for name in names:
            if name.startswith(".") or not name.endswith(".json"):
                continue
            path = self.folder / "requests" / name
            request = _request(path)
            with contextlib.suppress(OSError):
                path.unlink()
            if request is not None:
                found.append(request)
        return found


def _request(path: Path) -> dict[str, Any] | None:
    """A request, checked as anything from outside; None if it is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            read = json.loads(file.read(_LARGEST_REQUEST))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(read, dict) or read.get("format") != FORMAT or read.get("action") not in ACTIONS:
        return None
    checkpoint = read.get("checkpoint")
    if not isinstance(checkpoint, str) or not NAME.fullmatch(checkpoint):
        return None
    return {"id": path.name.removesuffix(".json")[:40], "action": read["action"], "checkpoint": checkpoint}
