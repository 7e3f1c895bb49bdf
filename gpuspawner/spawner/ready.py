"""Waiting for a server that has just been launched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

#: Seconds between two looks. JupyterHub's own looks are up to five seconds apart by the time a server answers.
_EVERY = 0.02
#: Seconds that a look waits. A server that loads its extensions takes connections and answers later.
_PATIENCE = 10.0


class Looks:
    """Looks at a launched server. They end after `within` seconds in all, or when `runs` says that it has ended."""

    def __init__(self, host: str, port: int, runs: Callable[[], bool], within: float) -> None:
        self._at = host, port
        self._runs = runs
        self._clock = asyncio.get_running_loop().time
        self._deadline = self._clock() + within

    async def until_listening(self) -> bool:
        """Return True once something takes connections there, False where the looks have ended."""
        return await self._until(self._listens)

    async def until_answering(self, path: str) -> bool:
        """Return True once `path` is answered there with anything but a server error, False as above."""
        return await self._until(lambda: self._answers(path))

    async def _until(self, look: Callable[[], Awaitable[bool]]) -> bool:
        while self._runs():
            try:
                async with asyncio.timeout(min(_PATIENCE, self._deadline - self._clock())):
                    if await look():
                        return True
            except (OSError, ValueError):  # TimeoutError is an OSError; a line that has no end is a ValueError
                pass
            if self._clock() >= self._deadline:
                return False
            await asyncio.sleep(_EVERY)
        return False

    async def _listens(self) -> bool:
        _, writer = await asyncio.open_connection(*self._at)
        writer.close()
        return True

    async def _answers(self, path: str) -> bool:
        reader, writer = await asyncio.open_connection(*self._at)
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {self._at[0]}\r\n\r\n".encode())
            version, _, status = (await reader.readline()).partition(b" ")
            return version.startswith(b"HTTP/") and status[:1] in (b"2", b"3", b"4")
        finally:
            writer.close()
