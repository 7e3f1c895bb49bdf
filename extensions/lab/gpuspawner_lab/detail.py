"""What the panel shows beyond the readings: who holds the memory, and the checkpoints. Found while a panel looks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .checkpoints import RunsFolder
from .holders import find_holders, kernel_states

#: Seconds after which notebooks' names are looked up again though no kernel changed, and the runs' files.
NAMES_SECONDS = 5.0
RUNS_SECONDS = 2.0


class PanelDetail:
    """Holders and runs as last found. `revision` changes when a panel should fetch them, or the session, anew.

    A panel so learns of changes by the telemetry that it gets anyhow; it never polls.
    """

    def __init__(self, kernels: Any, sessions: Any, runs: RunsFolder, clock: Callable[[], float] = time.time) -> None:
        self._kernels = kernels
        self._sessions = sessions
        self._runs_folder = runs
        # Counted on from the clock, so that a restarted server does not repeat a revision that panels know.
        self._revision = int(clock() * 1000)
        self._holders_key: object = None
        self._names_at = self._runs_at = float("-inf")
        self._session: Mapping[str, Any] | None = None
        self._session_key = ""
        self._pids: tuple[int, ...] = ()
        self.holders: list[dict[str, Any]] = []
        self.runs: list[dict[str, Any]] = []

    @property
    def revision(self) -> int:
        """Grows with every change."""
        return self._revision

    def holding_kernels(self) -> list[Any]:
        """The managers of the kernels that hold card memory now."""
        ids = [one["kernel_id"] for one in self.holders if one["kind"] == "kernel" and one["pids"]]
        return [self._kernels.get_kernel(kernel_id) for kernel_id in ids if kernel_id in self._kernels]

    async def update(self, pids: Iterable[int], session: Mapping[str, Any] | None) -> None:
        """Look again at what may have changed."""
        await self.update_holders(pids)
        now = time.monotonic()
        if now - self._runs_at >= RUNS_SECONDS:
            self._runs_at = now
            self._set("runs", await asyncio.to_thread(self._runs_folder.runs))
        self._note_session(session)

    async def update_holders(self, pids: Iterable[int]) -> None:
        """Bring pids to kernels and notebooks, when pids, kernels or their states changed, or names may have."""
        self._pids = tuple(sorted(set(pids)))
        key = (self._pids, kernel_states(self._kernels))
        now = time.monotonic()
        if key == self._holders_key and now - self._names_at < NAMES_SECONDS:
            return
        self._holders_key, self._names_at = key, now
        opened = await self._sessions.list_sessions()
        self._set("holders", [each.shown() for each in find_holders(self._pids, self._kernels, opened)])

    def forget_runs(self) -> None:
        """Read the runs again at the next update, for instance after a request was left."""
        self._runs_at = float("-inf")

    def _set(self, name: str, value: list[dict[str, Any]]) -> None:
        if getattr(self, name) != value:
            setattr(self, name, value)
            self._revision += 1

    def _note_session(self, session: Mapping[str, Any] | None) -> None:
        if session is self._session:
            return
        self._session = session
        # What the session uses changes all the time, and stands in the telemetry.
        key = json.dumps({**(session or {}), "memory_used_bytes": None}, sort_keys=True, default=str)
        if key != self._session_key:
            self._session_key = key
            self._revision += 1
