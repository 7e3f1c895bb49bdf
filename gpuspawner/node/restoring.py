"""After a restart every limit is written again: what is in force, or nothing for ended sessions."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from gpuspawner.errors import GPUSpawnerError
from gpuspawner.node.in_force import InForce
from gpuspawner.node.limits import abi, launch
from gpuspawner.node.limits.choice import Enforcers
from gpuspawner.node.presence import Presence
from gpuspawner.node.records import Record, Records

log = logging.getLogger(__name__)


def restore(sessions: Path, records: Records, in_force: InForce, presence: Presence) -> None:
    """Put the shares in force again of all sessions that have a folder below `sessions`; adopt those unknown."""
    for folder in sessions.iterdir():
        if records.get(folder.name) is None and presence.alive(folder):
            records.put(_adopted(folder))
    for record in records.all():
        if (sessions / record.session).is_dir():
            try:
                in_force.apply(record, record.eighths if record.state == "live" else 0)
            except GPUSpawnerError as error:
                log.warning("the limit of session %s could not be written again: %s", record.session, error)


def clear(sessions: Path, records: Records, enforcers: Enforcers, cards: Collection[str], presence: Presence) -> None:
    """Remove what is left of sessions without a record whose processes are gone."""
    for folder in sessions.iterdir():
        if records.get(folder.name) is None and not presence.alive(folder):
            with contextlib.suppress(GPUSpawnerError):
                enforcers.release(folder.name, cards)
            shutil.rmtree(folder, ignore_errors=True)


def _adopted(folder: Path) -> Record:
    """A record, by its limit file, of a session that runs and of which there is none (the records were lost)."""
    try:
        limits: list[abi.CardLimit] | None = abi.read_limits(launch.limit_path(folder))
    except (OSError, abi.LimitFileError) as error:
        log.warning("session %s runs without record and limit, and is ended: %s", folder.name, error)
        limits = None
    eighths = max((limit.eighths for limit in limits or []), default=0)
    cards = tuple(limit.uuid for limit in limits or [])
    log.warning("session %s runs, and no record of it was found: it holds %s/8 now", folder.name, eighths)
    state: Literal["live", "held"] = "live" if eighths or limits == [] else "held"  # [] was started without a card
    burst = any(limit.burst for limit in limits or [])
    held = eighths or min(len(cards), 1)
    return Record(folder.name, "", cards, held, state, True, time.time(), burst=burst)
