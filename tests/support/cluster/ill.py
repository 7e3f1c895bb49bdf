"""An API server that is slow, busy or broken: a proxy in front of the real one, for some of its users."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import aiohttp
from aiohttp import web

from .cluster import OwnCluster

Mood = Literal["well", "slow", "busy", "broken"]
#: What the slow one takes for an answer, in seconds.
SLOW = 5.0
_STATUS = {"busy": 429, "broken": 500}
_DROPPED = {"host", "connection", "transfer-encoding", "content-length", "content-encoding", "authorization"}


class IllServer:
    """Passes requests on as an administrator who speaks for whoever asks. `mood` may change at any time: *slow* answers
    after 5 s, *busy* says 429 to every other request, *broken* 500. `said` counts what it refused or delayed."""

    def __init__(self, cluster: OwnCluster) -> None:
        self.mood: Mood = "well"
        self.said: Counter[str] = Counter()
        self._cluster = cluster
        self._asked = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port: int = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    async def _start(self) -> int:
        tls = self._cluster.api.tls
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/as/{user}/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._cluster.host.network.outside, 0)
        await site.start()
        port: int = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        return port

    def kubeconfig(self, user: str) -> Path:
        """For a user whose requests go through here."""
        address = f"http://{self._cluster.host.network.outside}:{self.port}/as/{user}"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "ill", "cluster": {"server": address}}],
            "users": [{"name": "ill", "user": {}}],
            "contexts": [{"name": "ill", "context": {"cluster": "ill", "user": "ill"}}],
            "current-context": "ill",
        }
        path = self._cluster.host.folder / f"ill-{user.replace(':', '-')}.kubeconfig"
        path.write_text(json.dumps(content))
        return path

    def close(self) -> None:
        """End it."""

        async def end() -> None:
            await self._runner.cleanup()
            await self._session.close()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        mood = self.mood
        self._asked += 1
        if mood != "well":
            self.said[mood] += 1
        if mood == "slow":
            await asyncio.sleep(SLOW)
        elif mood in _STATUS and self._asked % 2:
            status = _STATUS[mood]
            return web.json_response({"kind": "Status", "code": status, "message": mood}, status=status)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _DROPPED}
        headers["Impersonate-User"] = request.match_info["user"]
        query = f"?{request.query_string}" if request.query_string else ""
        url = f"{self._cluster.server}/{request.match_info['path']}{query}"
        body = await request.read()
        passed: web.StreamResponse | None = None
        try:
            async with self._session.request(request.method, url, headers=headers, data=body or None) as answer:
                kept = {name: value for name, value in answer.headers.items() if name.lower() not in _DROPPED}
                if encoding := answer.headers.get("Content-Encoding"):
                    kept["Content-Encoding"] = encoding
                passed = web.StreamResponse(status=answer.status, headers=kept)
                await passed.prepare(request)
                async for chunk in answer.content.iter_any():
                    await passed.write(chunk)
                await passed.write_eof()
                return passed
        except aiohttp.ClientError:
            if passed is not None and request.transport is not None:
                request.transport.abort()  # as whoever speaks to the server itself finds it
                return passed
            return web.json_response({"kind": "Status", "code": 502, "message": "no API server"}, status=502)


@contextmanager
def ill_server(cluster: OwnCluster) -> Iterator[IllServer]:
    """One for a while."""
    made = IllServer(cluster)
    try:
        yield made
    finally:
        made.close()
