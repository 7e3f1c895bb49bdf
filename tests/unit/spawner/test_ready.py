"""Waiting for a launched server, with real sockets and processes."""

from __future__ import annotations

import asyncio
import sys

from support.common import free_ports

from gpuspawner.spawner.ready import until_listening

_SERVER = "import socket, time; s = socket.create_server(('127.0.0.1', {port})); s.accept()"


async def test_returns_once_the_port_takes_connections() -> None:
    port = free_ports(1)
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", _SERVER.format(port=port))
    try:
        assert await until_listening("127.0.0.1", port, lambda: server.returncode is None, 60)
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()


async def test_returns_as_soon_as_the_server_has_ended() -> None:
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(3)")
    async with asyncio.timeout(60):
        assert not await until_listening("127.0.0.1", free_ports(1), lambda: server.returncode is None, 600)
    assert server.returncode == 3


async def test_gives_up_in_time() -> None:
    assert not await until_listening("127.0.0.1", free_ports(1), lambda: True, 0.1)


async def test_an_address_that_is_none_is_not_up() -> None:
    assert not await until_listening("no-such-host.invalid", 80, lambda: True, 0.1)
