"""Waiting, and ports."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], timeout: float = 20.0, what: str | Callable[[], str] = "it") -> T:
    """The first true value of `condition`, asked again every 20 ms. AssertionError after `timeout` seconds, saying
    `what` was waited for, or what it returns."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s for {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on."""
    for first in range(20000 + os.getpid() % 10000, 60000, count):
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
