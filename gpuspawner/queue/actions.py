"""What a decision asks for, in the order in which it is to be done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Start:
    """Start `session` on `cards` with `eighths` of each, or bring it back where it was parked."""

    session: str
    cards: tuple[str, ...]
    eighths: int


@dataclass(frozen=True, slots=True)
class Shrink:
    """Make a running session smaller: `eighths` is what it keeps. Somebody more urgent needs the rest."""

    session: str
    eighths: int
    wanted_by: str


@dataclass(frozen=True, slots=True)
class Grow:
    """Give a session back what was taken from it before, as far as there is room: `eighths` in all."""

    session: str
    eighths: int


@dataclass(frozen=True, slots=True)
class Notice:
    """Tell a session that it will be parked at `due` (seconds), so that it saves."""

    session: str
    wanted_by: str
    due: float


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The notice is void: nobody needs that room any more."""

    session: str


@dataclass(frozen=True, slots=True)
class Park:
    """Checkpoint and stop a session; it waits again, with its old place in the queue."""

    session: str
    wanted_by: str


Action = Start | Shrink | Grow | Notice | Withdraw | Park
