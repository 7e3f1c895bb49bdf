"""One installation of gpuspawner on a machine, of which there may be several: its name, and who runs its agent."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from gpuspawner.errors import Unavailable


def short_name(state: Path) -> str:
    """A name for an installation that tells it from others on the machine."""
    return hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:12]


def own(path: Path) -> int:
    """Lock a file for as long as the returned descriptor is open. Raises Unavailable where another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Unavailable(f"Another agent is running on {path.parent}.") from None
    return descriptor
