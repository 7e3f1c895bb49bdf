"""Waiting for a server that has just been launched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Seconds between two looks. JupyterHub's own looks are up to five seconds apart by the time a server answers.
_EVERY = 0.02


async def until_listening(host: str, port: int, runs: Callable[[], bool], within: float) -> bool:
    """Return True when something takes connections at (host, port), False after `within` seconds, or as soon as
    `runs` says that what was launched has ended."""
    deadline = asyncio.get_running_loop().time() + within
    while runs():
        if await _takes_connections(host, port):
            return True
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(_EVERY)
    return False


async def _takes_connections(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # TimeoutError is one
        return False
    writer.close()
    return True
