"""Work that may be stopped first: `with priority("low"):` or `%%gpu --priority low` marks what runs inside.

The mark is for whoever decides whose share is taken: it stands in the state files of the runs that go on meanwhile
(`priority`), and in GPUSPAWNER_PRIORITY for processes that are started inside. It changes no limit by itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from gpuspawner_runtime.errors import RuntimeFault

VARIABLE = "GPUSPAWNER_PRIORITY"
LEVELS = ("low", "normal", "high")

#: Called after each change, for instance to write a state file.
listeners: list[Callable[[str], object]] = []


def current() -> str:
    """The priority of what runs now: `low`, `normal` or `high`."""
    word = os.environ.get(VARIABLE, "normal")
    return word if word in LEVELS else "normal"


def preemptible() -> bool:
    """Whether what runs now may be stopped for others."""
    return current() == "low"


@contextlib.contextmanager
def priority(level: str) -> Iterator[None]:
    """Mark what runs inside, for the whole process. Raises RuntimeFault for a level that is not known."""
    if level not in LEVELS:
        raise RuntimeFault(
            f"priority is {level!r}: it must be {', '.join(LEVELS[:-1])} or {LEVELS[-1]}.",
            field="priority",
            given=level,
            allowed=list(LEVELS),
        )
    before = os.environ.get(VARIABLE)
    _set(level)
    try:
        yield
    finally:
        _set(before)


def _set(level: str | None) -> None:
    if level is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = level
    for listener in list(listeners):
        with contextlib.suppress(Exception):  # a full disk must not fail the cell that is marked
            listener(current())
