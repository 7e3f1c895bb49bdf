"""What happens during a start, for the progress page, and what went wrong, for the failure page."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The parts of a start, in order, as people read them. What happens within one is told by its events.
PARTS = (
    ("place", "A place on a card"),
    ("card", "Your card"),
    ("environment", "Your environment"),
    ("server", "Your notebook server"),
)
_LOG_LINES = 25
_LOG_BYTES = 16 * 1024
_LONGEST_LINE = 400
_LONGEST_READ = 1000  # looked through for secrets, so that none that begins in what is shown is cut and not known
_SECRETS = (
    (re.compile(r"(?i)\b(authorization|cookie)\b.*"), r"\1 [hidden]"),
    (
        re.compile(r"(?i)((?:token|passw\w*|secret|(?:api|access)[_-]?key)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]{4,}"),
        r"\1[hidden]",
    ),
    (re.compile(r"(://[^/\s:@]*:)[^/\s@]+@"), r"\1[hidden]@"),
    (re.compile(r"(?i)\b(bearer|token)\s+\S{12,}"), r"\1 [hidden]"),
)
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class Steps:
    """The steps of one start, each told as it happens, with the seconds since the start began."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self._numbers: list[int] = []
        self._number = 0
        self._began = time.monotonic()
        self._more = asyncio.Event()

    def take(self, part: str, progress: int, message: str, *, waiting: bool = False) -> None:
        """A step happened: `part` as in PARTS, `progress` in percent, one sentence. `waiting`: for others; of such
        steps in a row only the last one is kept, and none that says what is known already."""
        last = self.taken[-1] if self.taken else {}
        if waiting and last.get("waiting"):
            if last["message"] == message:
                return
            self.taken.pop()
            self._numbers.pop()
        seconds = round(time.monotonic() - self._began, 1)
        step = {"progress": progress, "message": message, "part": part, "seconds": seconds}
        self.taken.append({**step, "waiting": True} if waiting else step)
        self._number += 1
        self._numbers.append(self._number)
        more, self._more = self._more, asyncio.Event()
        more.set()

    @property
    def waiting(self) -> bool:
        """Whether the last step is to wait for others."""
        return bool(self.taken and self.taken[-1].get("waiting"))

    @property
    def seconds(self) -> float:
        """Seconds since the start began."""
        return round(time.monotonic() - self._began, 1)

    @property
    def shown(self) -> list[dict[str, Any]]:
        """Each of PARTS with what was told of it last, for a page without scripts."""
        current = self.taken[-1]["part"] if self.taken else PARTS[0][0]
        order = [part for part, _ in PARTS]
        shown = []
        for at, (part, title) in enumerate(PARTS):
            told = [step for step in self.taken if step["part"] == part]
            state = "now" if part == current else "done" if at < order.index(current) else "later"
            last: dict[str, Any] = told[-1] if told else {}
            shown.append({"part": part, "title": title, "state": state, **last})
        return shown

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """The steps taken, then each as it happens, without an end."""
        told = 0
        while True:
            more = self._more
            news = [(n, step) for n, step in zip(self._numbers, self.taken, strict=True) if n > told]
            for number, step in news:
                told = number
                yield dict(step)
            await more.wait()


@dataclass(frozen=True)
class Failure:
    """A start that failed: what happened, what was undone, what its user can do; `log`: the server's last lines."""

    happened: str
    undone: str
    advice: tuple[str, ...]
    log: tuple[str, ...] = ()


def tail(path: Path, hide: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The last lines of a server's log as its user may see them: without control characters, and without what looks
    like a secret or is one of `hide`. Empty where there is no log."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES)
            file.seek(start)
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    # The first line may begin within a secret that so is none that can be known.
    lines = text.splitlines()[1 if start else 0 :]
    shown = [_without_secrets(_CONTROL.sub("", line)[:_LONGEST_READ], hide).rstrip() for line in lines[-_LOG_LINES:]]
    return tuple(line[:_LONGEST_LINE] for line in shown if line)


def _without_secrets(line: str, hide: tuple[str, ...]) -> str:
    for secret in hide:
        if secret:
            line = line.replace(secret, "[hidden]")
    for pattern, instead in _SECRETS:
        line = pattern.sub(instead, line)
    return line
