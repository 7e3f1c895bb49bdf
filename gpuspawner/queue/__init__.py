"""Who goes first, and who gives way. Pure: no clock, no database, no fleet of its own.

`decide` looks at a `Board` (cards, what runs on them, who waits) and says what is to be done now. The replay runs whole
traces through the same function in virtual time; `expected_wait` asks it what would happen next.
"""

from gpuspawner.queue.actions import Action, Grow, Notice, Park, Shrink, Start, Withdraw
from gpuspawner.queue.board import Board, CardRoom, Running, Waiting
from gpuspawner.queue.clockwork import Clockwork, expected_wait
from gpuspawner.queue.decide import decide
from gpuspawner.queue.rules import CLASSES, FIFO, NO_RESIZE, POLICIES, STANDARD, STRICT, ClassRules, Rules

__all__ = [
    "CLASSES",
    "FIFO",
    "NO_RESIZE",
    "POLICIES",
    "STANDARD",
    "STRICT",
    "Action",
    "Board",
    "CardRoom",
    "ClassRules",
    "Clockwork",
    "Grow",
    "Notice",
    "Park",
    "Rules",
    "Running",
    "Shrink",
    "Start",
    "Waiting",
    "Withdraw",
    "decide",
    "expected_wait",
]
