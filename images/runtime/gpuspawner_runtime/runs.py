"""The runs of this home, read from their state files as the panel reads them, and requests to their programs.

The format is `docs/reference/runtime-state.md`.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuspawner_runtime.errors import RuntimeFault

FOLDER = Path(".local/state/gpuspawner-runtime/runs")
ACTIONS = ("restore", "pin", "unpin")
_LARGEST = 256 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}", re.ASCII)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint as its program describes it; None is unknown."""

    name: str
    step: int | None
    bytes: int | None
    saved: datetime | None
    verified: bool | None
    pinned: bool | None


@dataclass(frozen=True)
class KnownRun:
    """A run with its checkpoints, newest first."""

    name: str
    status: str | None
    updated: datetime | None
    checkpoints: tuple[Checkpoint, ...]


def folder() -> Path:
    """Where the state files are."""
    return Path.home() / FOLDER


def known() -> list[KnownRun]:
    """All runs that have a readable state file, the one written last first."""
    found = [run for run in _read_all() if run is not None]
    return sorted(found, key=lambda run: run.updated or datetime.min.replace(tzinfo=UTC), reverse=True)


def request(action: str, checkpoint: str, run: str | None = None) -> KnownRun:
    """Ask a run's program to restore, pin or unpin a checkpoint; returns the run. It answers when it looks next.

    Without `run`: the one that was written last and has such a checkpoint. Raises RuntimeFault.
    """
    if action not in ACTIONS:
        raise RuntimeFault(f"action must be {', '.join(ACTIONS)}.", field="action", given=action, allowed=list(ACTIONS))
    candidates = [each for each in known() if run is None or each.name == run]
    if not candidates:
        text = "There is no run yet." if run is None else f"There is no run {run!r}."
        raise RuntimeFault(text, code="not_found", field="run", given=run)
    for each in candidates:
        if any(one.name == checkpoint for one in each.checkpoints):
            _leave(each.name, action, checkpoint)
            return each
    where = f"run {candidates[0].name}" if len(candidates) == 1 else "any run"
    raise RuntimeFault(
        f"There is no checkpoint {checkpoint[:60]!r} in {where}: %ckpt ls shows what there is.",
        code="not_found",
        field="checkpoint",
        given=checkpoint,
    )


def _read_all() -> Iterator[KnownRun | None]:
    try:
        names = sorted(each.name for each in folder().iterdir())
    except OSError:
        return
    for name in names:
        if _NAME.fullmatch(name):
            yield _read(folder() / name / "state.json", name)


def _read(path: Path, name: str) -> KnownRun | None:
    try:
        with path.open("rb") as file:
            state = json.loads(file.read(_LARGEST + 1))
        if state["format"] != 1 or state["run"] != name:
            return None
        rows = [_checkpoint(row) for row in reversed(state["checkpoints"])]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    status = state.get("status")
    shown = tuple(row for row in rows if row is not None)
    return KnownRun(name, status if isinstance(status, str) else None, _time(state.get("updated")), shown)


def _checkpoint(row: Any) -> Checkpoint | None:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str) or not _NAME.fullmatch(row["name"]):
        return None
    step, size, verified, pinned = (row.get(key) for key in ("step", "bytes", "verified", "pinned"))
    return Checkpoint(
        name=row["name"],
        step=step if type(step) is int else None,
        bytes=size if type(size) is int else None,
        saved=_time(row.get("saved")),
        verified=verified if isinstance(verified, bool) else None,
        pinned=pinned if isinstance(pinned, bool) else None,
    )


def _time(value: Any) -> datetime | None:
    try:
        read = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return read if read.tzinfo else None


def _leave(run: str, action: str, checkpoint: str) -> None:
    name = secrets.token_hex(8)
    asked = datetime.now(UTC).isoformat(timespec="milliseconds")
    place = folder() / run / "requests"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        partial = place / f".{name}.partial"
        partial.write_text(
            json.dumps({"format": 1, "id": name, "action": action, "checkpoint": checkpoint, "asked": asked})
        )
        partial.rename(place / f"{name}.json")
    except OSError as error:
        raise RuntimeFault(f"The request cannot be written: {error.strerror}.", code="conflict", field="run") from error
