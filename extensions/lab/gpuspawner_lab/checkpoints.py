"""The checkpoints of this session's runs, from the runtime's state files; and requests to restore or pin one.

The format is `docs/reference/runtime-state.md`. A state file may be anything that a program of the user writes there:
it is read with limits on its size, numbers and names, never followed through a link, and what is wrong becomes
a sentence. All of it blocks on the disk: call it from a worker thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: Where runs stand, below the home.
RUNS = Path(".local/state/gpuspawner-runtime/runs")
STATE, REQUESTS = "state.json", "requests"
FORMAT = 1
ACTIONS = ("restore", "pin", "unpin")

LARGEST_STATE = 256 * 1024
MOST_RUNS = 32
MOST_CHECKPOINTS = 200
MOST_REQUESTS = 32
_LARGEST_REQUEST = 4096
_MOST_ENTRIES = 1024
_LARGEST_NUMBER = 2**63 - 1
_LONGEST_TEXT = 300
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}", re.ASCII)
_STATUS = ("running", "paused", "ended", "failed")


class CheckpointError(ValueError):
    """A request that cannot be made; the message is a sentence, `field` what it is about."""

    def __init__(self, message: str, field: str, given: Any, allowed: Any, status: int = 422) -> None:
        self.field = field
        self.given = given
        self.allowed = allowed
        self.status = status
        super().__init__(message)


class _Unreadable(Exception):
    """Why a state file is not believed, as the end of a sentence."""


class RunsFolder:
    """The runs below a home. Files that have not changed are not read again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}

    def runs(self) -> list[dict[str, Any]]:
        """Every run, the one that was written last first; at most `MOST_RUNS`. Never raises."""
        found = []
        for name in _names(self.folder):
            if NAME.fullmatch(name) and (run := self._run(name)) is not None:
                found.append(run)
        for name in list(self._read):  # a copy: other threads read runs meanwhile
            if not (self.folder / name).is_dir():
                self._read.pop(name, None)
        found.sort(key=lambda run: run["updated"] or "", reverse=True)
        return found[:MOST_RUNS]

    def request(self, run: Any, checkpoint: Any, action: Any) -> str:
        """Leave a request for the runtime; returns its id. Raises `CheckpointError`."""
        if action not in ACTIONS:
            raise CheckpointError(
                f"action must be {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}.", "action", _given(action), list(ACTIONS)
            )
        known = self._run(run) if isinstance(run, str) and NAME.fullmatch(run) else None
        if known is None:
            raise CheckpointError("There is no such run.", "run", _given(run), None, status=404)
        if checkpoint not in [each["name"] for each in known["checkpoints"]]:
            raise CheckpointError(
                "The run has no such checkpoint any more.", "checkpoint", _given(checkpoint), None, status=404
            )
        if len(known["requests"]) >= MOST_REQUESTS:
            raise CheckpointError(
                f"{MOST_REQUESTS} requests wait for the runtime already. Is the run still going?",
                "run",
                run,
                None,
                status=409,
            )
        name = secrets.token_hex(8)
        asked = datetime.now(UTC).isoformat(timespec="milliseconds")
        body = {"format": FORMAT, "id": name, "action": action, "checkpoint": checkpoint, "asked": asked}
        try:
            _leave(self.folder / str(run), name, json.dumps(body).encode())
        except OSError as error:
            raise CheckpointError(
                f"The request cannot be written: {error.strerror}.", "run", run, None, status=409
            ) from error
        return name

    def _run(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name / STATE
        try:
            status = path.lstat()
        except OSError:
            return None
        mark = (status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode)
        kept = self._read.get(name)
        if kept is None or kept[0] != mark:
            try:
                known = _state(_load(path, LARGEST_STATE), name)
            except _Unreadable as problem:
                known = {**_EMPTY, "run": name, "problem": f"Its state file {problem}."}
            kept = self._read[name] = (mark, known)
        return {**kept[1], "requests": list(_pending(self.folder / name / REQUESTS))}


_EMPTY: dict[str, Any] = {
    "run": "",
    "title": None,
    "status": None,
    "pid": None,
    "updated": None,
    "next_due": None,
    "checkpoints": [],
    "answers": [],
    "problem": None,
}


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False)]
    except OSError:
        return []


def _load(path: Path, largest: int) -> dict[str, Any]:
    # Not blocking, so that a pipe in its place does not hold the thread for good.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _Unreadable(f"cannot be opened ({error.strerror})") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _Unreadable("is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            raw = file.read(largest + 1)
    except OSError as error:
        raise _Unreadable(f"cannot be read ({error.strerror})") from None
    finally:
        os.close(descriptor)
    if len(raw) > largest:
        raise _Unreadable(f"is larger than {largest // 1024} KiB")
    try:
        read = json.loads(raw)
    except (ValueError, RecursionError):
        raise _Unreadable("is not valid JSON") from None
    if not isinstance(read, dict):
        raise _Unreadable("is not a JSON object")
    return read


def _state(read: dict[str, Any], name: str) -> dict[str, Any]:
    if read.get("format") != FORMAT or isinstance(read.get("format"), bool):
        raise _Unreadable(f"has a format that is not {FORMAT}")
    if read.get("run") != name:
        raise _Unreadable("is not of the run that its folder names")
    rows = read.get("checkpoints")
    if not isinstance(rows, list):
        raise _Unreadable("has no list of checkpoints")
    # The newest stand last in the file, and first on the screen.
    checkpoints = [row for row in map(_checkpoint, reversed(rows[-MOST_CHECKPOINTS:])) if row is not None]
    answers = read.get("answers")
    answers = answers[-MOST_REQUESTS:] if isinstance(answers, list) else []
    return {
        "run": name,
        "title": _text(read.get("title")),
        "status": read.get("status") if read.get("status") in _STATUS else None,
        "pid": _number(read.get("pid")),
        "updated": _time(read.get("updated")),
        "next_due": _time(read.get("next_due")),
        "checkpoints": checkpoints,
        "answers": [
            row
            for row in map(_answer, answers[-MOST_REQUESTS:] if isinstance(answers, list) else [])
            if row is not None
        ],
        "problem": _text(read.get("alarm")),
    }


def _checkpoint(row: Any) -> dict[str, Any] | None:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str) or not NAME.fullmatch(row["name"]):
        return None
    return {
        "name": row["name"],
        "step": _number(row.get("step")),
        "bytes": _number(row.get("bytes")),
        "saved": _time(row.get("saved")),
        "verified": row.get("verified") if isinstance(row.get("verified"), bool) else None,
        "pinned": row.get("pinned") if isinstance(row.get("pinned"), bool) else None,
    }


def _answer(row: Any) -> dict[str, Any] | None:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str) or row.get("outcome") not in ("done", "refused"):
        return None
    return {"id": row["id"][:40], "outcome": row["outcome"], "message": _text(row.get("message"))}


def _pending(folder: Path) -> Iterator[dict[str, Any]]:
    for name in _names(folder)[: 4 * MOST_REQUESTS]:
        if not name.endswith(".json") or name.startswith("."):
            continue
        try:
            read = _load(folder / name, _LARGEST_REQUEST)
        except _Unreadable:
            continue
        if read.get("action") in ACTIONS and isinstance(read.get("checkpoint"), str):
            yield {
                "id": name.removesuffix(".json")[:40],
                "action": read["action"],
                "checkpoint": read["checkpoint"][:100],
                "asked": _time(read.get("asked")),
            }


def _leave(run: Path, name: str, body: bytes) -> None:
    """Write a request whole or not at all, in a folder that is not reached through a link."""
    with contextlib.ExitStack() as opened:
        folder = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, folder)
        with contextlib.suppress(FileExistsError):
            os.mkdir(REQUESTS, 0o700, dir_fd=folder)
        inner = os.open(REQUESTS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        opened.callback(os.close, inner)
        partial = f".{name}.partial"
        target = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=inner)
        try:
            with os.fdopen(target, "wb") as file:
                file.write(body)
            os.rename(partial, f"{name}.json", src_dir_fd=inner, dst_dir_fd=inner)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=inner)
            raise


def _number(value: Any) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_NUMBER
    return value if fits else None


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    cleaned = "".join(letter if letter.isprintable() else " " for letter in value[:_LONGEST_TEXT]).strip()
    return cleaned or None


def _time(value: Any) -> str | None:
    """An ISO 8601 time with its offset, in UTC; anything else is unknown."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        read = datetime.fromisoformat(value)
        return None if read.tzinfo is None else read.astimezone(UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return None


def _given(value: Any) -> Any:
    return value[:80] if isinstance(value, str) else None
