"""A user's home: made if missing, with the tour in it."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

TOUR = "tour.ipynb"


def tour_bytes() -> bytes | None:
    """The tour's notebook; None where the Lab extension, which carries it, is not installed."""
    try:
        return (resources.files("gpuspawner_lab") / "tour" / TOUR).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        return None


def prepare(home: Path, uid: int | None, gid: int | None) -> None:
    """Make `home` if it is missing and put the tour into it if that is missing, owned by uid:gid.

    The home is the user's: nothing in it is followed or overwritten. Raises OSError.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if uid is not None and os.fstat(folder).st_uid != uid:
            os.fchown(folder, uid, gid if gid is not None else -1)
        tour = tour_bytes()
        if tour is None:
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            target = os.open(TOUR, flags, 0o600, dir_fd=folder)
        except FileExistsError:
            return
        with os.fdopen(target, "wb") as file:
            file.write(tour)
            if uid is not None:
                os.fchown(file.fileno(), uid, gid if gid is not None else -1)
    finally:
        os.close(folder)
