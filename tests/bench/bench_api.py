"""Changes a second that the service answers: resizes of 32 sessions over 16 connections, each with an idempotency key,
written to the ledger, the audit and the kept answers, in SQLite on this machine's disk. The fleet is one in memory:
what a node and its driver take is measured by `resize` and `cluster-resize`.

The baseline: questions that need no sign-in and no database (`/health`), over as many connections, in the same run;
and how often this disk writes a page for good, one after the other."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvicorn

from gpuspawner.service.requests.rate import RateLimit
from tests.support.memory_fleet import House, MemoryFleet

SESSIONS, CONNECTIONS, SECONDS = 32, 16, 5.0


def run() -> tuple[float, str]:
    """Changes a second."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        house = House(Path(folder), fleet=MemoryFleet(cards=8), rate=RateLimit(0))
        sessions = [house.start(f"u{number}", "1/4").json()["session"]["id"] for number in range(SESSIONS)]
        house.engine.dispose()
        service = os.fork()
        if not service:
            _serve(house, listener)
        try:
            port = listener.getsockname()[1]
            questions = asyncio.run(_load(port, lambda _c, _n: _request("GET", "/health")))
            changes = asyncio.run(_load(port, lambda c, n: _change(sessions, c, n)))
        finally:
            os.kill(service, signal.SIGKILL)
            os.waitpid(service, 0)
        writes = _writes(Path(folder) / "page")
    print(f"a second: {questions:.0f} questions without sign-in or database, {changes:.0f} changes")
    print(f"pages that this disk writes for good, one after the other: {writes:.0f} a second")
    return changes, "1/s"


def _serve(house: House, listener: socket.socket) -> None:
    """The service, in a process of its own. Does not return."""
    try:
        sys.setswitchinterval(0.0005)  # as the service does
        uvicorn.Server(uvicorn.Config(house.app, log_level="error", access_log=False)).run([listener])
    finally:
        os._exit(1)


def _change(sessions: list[str], connection: int, number: int) -> bytes:
    session = sessions[(connection + number * CONNECTIONS) % SESSIONS]
    share = "1/8" if number // (SESSIONS // CONNECTIONS) % 2 == 0 else "1/4"
    key = f"Idempotency-Key: {connection:04}-{number:08}\r\nContent-Type: application/json\r\n"
    return _request("PATCH", f"/sessions/{session}", key, f'{{"share":"{share}"}}')


def _request(method: str, path: str, headers: str = "", body: str = "") -> bytes:
    head = f"{method} /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer admin\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def _load(port: int, request: Callable[[int, int], bytes]) -> float:
    """Answers a second; each must be a 200."""
    end = time.perf_counter() + SECONDS

    async def one(connection: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        count = 0
        while time.perf_counter() < end:
            writer.write(request(connection, count))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"{head!r} {body!r}")
            count += 1
        writer.close()
        return count

    return sum(await asyncio.gather(*map(one, range(CONNECTIONS)))) / SECONDS


def _writes(path: Path) -> float:
    begin, count = time.perf_counter(), 200
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(bytes(4096))
            os.fsync(file.fileno())
    return count / (time.perf_counter() - begin)
