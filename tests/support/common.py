"""Waiting, and ports."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_FIRST, _LAST = 20000, 32000


def until(
    condition: Callable[[], T],
    timeout: float = 20.0,
    what: str | Callable[[], str] = "it",
    every: float = 0.02,
) -> T:
    """The first true value of `condition`, asked again `every` so many seconds. AssertionError after `timeout` seconds,
    saying `what` was waited for, or what it returns."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s for {what if isinstance(what, str) else what()}")
        time.sleep(every)


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on.

    Each process looks in a place of its own, since another one may be about to take what nobody listens on yet; and
    below the ports that the machine gives to outgoing connections.
    """
    rows = (_LAST - _FIRST) // count
    begin = os.getpid() * 16 % rows
    for row in range(begin, begin + rows):
        first = _FIRST + row % rows * count
        held: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
        return first
    raise AssertionError("no free ports")


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def gone(pids: set[int]) -> Callable[[], bool]:
    """Asks whether none of them runs any more."""
    return lambda: not any(alive(pid) for pid in pids)
