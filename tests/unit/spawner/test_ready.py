"""Waiting for a launched server, with real sockets and processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from support.common import free_ports

from gpuspawner.spawner.ready import Looks

_ONE_CONNECTION = "import socket; s = socket.create_server(('127.0.0.1', {port})); s.accept()"
#: Answers one request after the other with these statuses, and ends before the next.
_ANSWERS = """
import socket
s = socket.create_server(('127.0.0.1', {port}))
for status in {statuses}:
    c, _ = s.accept()
    assert c.recv(1000).startswith(b'GET /user/ada/api HTTP/1.0\\r\\n')
    c.sendall(b'HTTP/1.1 %d So\\r\\n\\r\\n' % status if status else b'what?' * 100000)
    c.close()
s.accept()
"""


@asynccontextmanager
async def program(code: str) -> AsyncIterator[Callable[[], bool]]:
    """A Python program; yields whether it runs."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    try:
        yield lambda: process.returncode is None
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_returns_once_the_port_takes_connections() -> None:
    port = free_ports(1)
    async with program(_ONE_CONNECTION.format(port=port)) as runs:
        assert await Looks("127.0.0.1", port, runs, 60).until_listening()


async def test_returns_as_soon_as_the_server_has_ended() -> None:
    async with asyncio.timeout(60), program("raise SystemExit(3)") as runs:
        assert not await Looks("127.0.0.1", free_ports(1), runs, 600).until_listening()
        assert not runs()


async def test_gives_up_in_time() -> None:
    assert not await Looks("127.0.0.1", free_ports(1), lambda: True, 0.1).until_listening()


async def test_an_address_that_is_none_is_not_up() -> None:
    assert not await Looks("no-such-host.invalid", 80, lambda: True, 0.1).until_listening()


@pytest.mark.parametrize("status", [200, 302, 403])
async def test_waits_for_an_answer_that_is_no_server_error(status: int) -> None:
    port = free_ports(1)
    async with program(_ANSWERS.format(port=port, statuses=[503, None, status])) as runs:
        looks = Looks("127.0.0.1", port, runs, 60)
        assert await looks.until_answering("/user/ada/api")
        assert runs()


async def test_a_server_that_listens_and_ends_is_not_waited_for() -> None:
    port = free_ports(1)
    async with asyncio.timeout(60), program(_ANSWERS.format(port=port, statuses=[500]) + "raise SystemExit") as runs:
        assert not await Looks("127.0.0.1", port, runs, 600).until_answering("/user/ada/api")
        assert not runs()


async def test_who_listens_and_never_answers_is_given_up() -> None:
    server = await asyncio.start_server(lambda *_: asyncio.Event().wait(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        looks = Looks("127.0.0.1", port, lambda: True, 0.3)
        assert await looks.until_listening()
        assert not await looks.until_answering("/user/ada/api")
