"""Which processes are a session's, and whether any is left: by our own launcher, or by whatever else starts them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from gpuspawner.node.limits import launch


class Presence(Protocol):
    """Sessions are known by the node's own folders for them."""

    def alive(self, folder: Path) -> bool:
        """Whether the session goes on: while it does, somebody may still use its share."""
        ...

    def was_started(self, folder: Path) -> bool:
        """Whether a process of the session was ever started."""
        ...

    def end(self, folder: Path, timeout: float) -> None:
        """End the session's processes, after `timeout` seconds by force."""
        ...

    def owners(self, folders: Iterable[Path], pids: Iterable[int]) -> dict[int, Path]:
        """Which of the sessions each of `pids` (of this machine) is of; others are left out."""
        ...


class Launched:
    """Of sessions that our launcher starts on this machine."""

    def alive(self, folder: Path) -> bool:
        """Whether any process is left."""
        return launch.session_alive(folder)

    def was_started(self, folder: Path) -> bool:
        """Whether the launcher ran for it."""
        return launch.was_started(folder)

    def end(self, folder: Path, timeout: float) -> None:
        """By its guard."""
        launch.end_session(folder, timeout=timeout)

    def owners(self, folders: Iterable[Path], pids: Iterable[int]) -> dict[int, Path]:
        """By PID namespaces and ancestors."""
        return launch.owners(folders, pids)


LAUNCHED = Launched()
