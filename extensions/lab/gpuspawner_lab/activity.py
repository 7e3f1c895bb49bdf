"""Tells the hub's service how long nothing was done in this Jupyter server, so that idle ones can be told from busy.

A kernel that computes is at work, and so is a terminal in which a program runs, whether or not a browser is open. An
open tab alone is not: it asks for this and that all the time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from .service import ServiceError

if TYPE_CHECKING:
    from logging import Logger

    from jupyter_server.serverapp import ServerApp

#: What an open tab sends by itself.
_NOT_A_PERSON = ("/gpuspawner/api/watch",)


class _Terminal(Protocol):
    ptyproc: Any


class ActivityReporter:
    """Reports every `seconds`. `send` takes the seconds for which nothing was done."""

    def __init__(
        self, server: ServerApp, send: Callable[[float], Awaitable[object]], seconds: float, log: Logger
    ) -> None:
        self._server = server
        self._send = send
        self._seconds = seconds
        self._log = log
        self._last_change = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        self._refused = False
        self._hear_requests()

    def start(self) -> None:
        """Report from now on, in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop reporting."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._send(self.idle_seconds())
                self._refused = False
            except ServiceError as error:
                if not self._refused:
                    self._log.warning("gpuspawner: the service did not take a report of activity: %s", error)
                self._refused = True
            await asyncio.sleep(self._seconds)

    def idle_seconds(self) -> float:
        """Seconds for which nothing was done: 0 while a kernel or a program in a terminal runs."""
        if self._kernel_busy() or self._terminal_busy():
            return 0.0
        idle = time.monotonic() - self._last_change
        now = datetime.now(UTC)
        for moment in self._last_moments():
            idle = min(idle, (now - moment).total_seconds())
        return max(0.0, idle)

    def _kernel_busy(self) -> bool:
        manager = self._server.kernel_manager
        kernels = (manager.get_kernel(kernel) for kernel in manager.list_kernel_ids())
        return any(getattr(kernel, "execution_state", None) == "busy" for kernel in kernels)

    def _terminal_busy(self) -> bool:
        return any(foreground(terminal) is not None for terminal in self._terminals().values())

    def _terminals(self) -> dict[str, _Terminal]:
        manager = self._server.web_app.settings.get("terminal_manager")
        return dict(getattr(manager, "terminals", {}))

    def _last_moments(self) -> list[datetime]:
        manager = self._server.kernel_manager
        holders: list[Any] = [manager.get_kernel(kernel) for kernel in manager.list_kernel_ids()]
        holders += self._terminals().values()
        moments = [getattr(holder, "last_activity", None) for holder in holders]
        return [moment for moment in moments if isinstance(moment, datetime) and moment.tzinfo is not None]

    def _hear_requests(self) -> None:
        """Take notice of what changes something: saving, starting, renaming. Jupyter's log sees every request."""
        settings = self._server.web_app.settings
        logged: Callable[[Any], None] | None = settings.get("log_function")

        def hear(handler: Any) -> None:
            request = handler.request
            changes = request.method in ("POST", "PUT", "PATCH", "DELETE") and handler.get_status() < 400
            if changes and not request.path.endswith(_NOT_A_PERSON):
                self._last_change = time.monotonic()
            if logged is not None:
                logged(handler)

        settings["log_function"] = hear


def foreground(terminal: _Terminal) -> int | None:
    """The process group that has the terminal, where that is not its shell's."""
    try:
        group = os.tcgetpgrp(terminal.ptyproc.fd)
        return None if group == os.getpgid(terminal.ptyproc.pid) else group
    except (OSError, AttributeError, ValueError):
        return None
