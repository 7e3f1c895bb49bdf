"""A user's home: made if missing, with the tour in it."""

from __future__ import annotations

import contextlib
import logging
import os
from importlib import resources
from pathlib import Path

TOUR = "tour.ipynb"

log = logging.getLogger(__name__)


def tour_bytes() -> bytes | None:
    """The tour's notebook; None where the Lab extension, which carries it, is not installed."""
    try:
        return (resources.files("gpuspawner_lab") / "tour" / TOUR).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        return None


def prepare(home: Path, uid: int | None, gid: int | None) -> None:
    """Make `home` if it is missing and put the tour into it if that is missing, owned by uid:gid.

    The home is the user's: nothing in it is followed or overwritten. Raises OSError for the home; a tour that
    cannot be written is left out.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if uid is not None and os.fstat(folder).st_uid != uid:
            os.fchown(folder, uid, gid if gid is not None else -1)
        try:
            _put_tour(folder, uid, gid)
        except OSError as error:  # a full disk, say: nobody should be kept from cleaning up by a missing tour
            log.warning("The tour could not be put into %s: %s", home, error)
    finally:
        os.close(folder)


def _put_tour(folder: int, uid: int | None, gid: int | None) -> None:
    """Put the tour into the folder, whole or not at all, unless something of its name is there."""
    tour = tour_bytes()
    if tour is None:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        target = os.open(TOUR, flags, 0o600, dir_fd=folder)
    except FileExistsError:
        return
    try:
        with os.fdopen(target, "wb") as file:
            file.write(tour)
            file.flush()
            if uid is not None:
                os.fchown(file.fileno(), uid, gid if gid is not None else -1)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(TOUR, dir_fd=folder)
        raise
