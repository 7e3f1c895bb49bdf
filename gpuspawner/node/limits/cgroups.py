"""Cgroups of version 2 for sessions, so that the driver can tell whose memory is whose."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
FOLDER = "gpuspawner"
CONTROLLER = "dmem"


def root(mounts: Path = MOUNTS) -> Path | None:
    """Where cgroups of version 2 are mounted; None where they are not."""
    for line in mounts.read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    return None


class SessionCgroups:
    """The cgroups of one installation's sessions: below `gpuspawner/NAME` of the hierarchy."""

    def __init__(self, below: Path, name: str) -> None:
        self._folder = below / FOLDER / name
        self._chain = [below, below / FOLDER, self._folder]

    def make(self, session: str) -> Path:
        """The session's cgroup, made if it is not there. Raises OSError."""
        path = self._folder / session
        if not path.is_dir():
            for folder in self._chain:
                folder.mkdir(exist_ok=True)
                _enable_controller(folder)
            path.mkdir(exist_ok=True)
        return path

    def path(self, session: str) -> Path | None:
        """The session's cgroup, if it is there."""
        path = self._folder / session
        return path if path.is_dir() else None

    def paths(self) -> list[Path]:
        """Every session's cgroup that is there."""
        return sorted(path for path in self._folder.iterdir() if path.is_dir()) if self._folder.is_dir() else []

    def remove(self, session: str) -> bool:
        """Remove the cgroup of a session without processes; False while there are some."""
        try:
            (self._folder / session).rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Remove the folders, where they are empty."""
        for folder in (self._folder, self._folder.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _enable_controller(folder: Path) -> None:
    """Let the kernel count device memory below `folder`, where it can; else the driver does it by itself."""
    with contextlib.suppress(OSError):
        if CONTROLLER in (folder / "cgroup.controllers").read_text().split():
            (folder / "cgroup.subtree_control").write_text(f"+{CONTROLLER}")


def in_use(path: Path) -> bool:
    """Whether a cgroup has processes, itself or below it."""
    try:
        return "populated 1" in (path / "cgroup.events").read_text()
    except FileNotFoundError:
        return False


def may_make(below: Path) -> bool:
    """Whether we may make cgroups there."""
    return os.geteuid() == 0 and os.access(below, os.W_OK)
