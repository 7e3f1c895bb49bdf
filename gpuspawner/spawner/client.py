"""The spawner's side of the service's REST API."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import httpx

from gpuspawner import tls
from gpuspawner.spawner.errors import Refused, ServiceDown

Json = dict[str, Any]
_TIMEOUT = httpx.Timeout(20.0, connect=3.0)


class ServiceClient:
    """Asks the service at `url` (ending in /api/v1). The token is read from its file for every request, so
    that it is nowhere else and may change. With `socket` it is sent there, and not to whoever holds the port.

    Every method raises ServiceDown where the service does not answer, Refused where it says no.
    """

    def __init__(self, url: str, token_file: Path, socket: Path | None = None) -> None:
        self.url = url.rstrip("/")
        self.token_file = token_file
        self.socket = socket

    async def request(self, method: str, path: str, **kwargs: Any) -> Json:
        """One request; the answer's JSON object."""
        try:
            token = self.token_file.read_text(encoding="ascii").strip()
            # trust_env off: a proxy for the internet must not see requests to loopback
            uds = str(self.socket) if self.socket else None
            transport = httpx.AsyncHTTPTransport(verify=tls.context(), trust_env=False, uds=uds)
            async with httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False, transport=transport) as client:
                headers = {"Authorization": f"Bearer {token}"}
                answer = await client.request(method, self.url + path, headers=headers, **kwargs)
        except (httpx.HTTPError, OSError) as error:
            raise ServiceDown from error
        try:
            body = answer.json() if answer.content else {}
        except ValueError:
            body = {}
        if not answer.is_success:
            raise Refused.from_service(answer.status_code, body)
        if not isinstance(body, dict):
            raise Refused(503, "The GPU service gave an answer that is not understood.", code="unavailable")
        return cast(Json, body)

    async def offers(self, user: str) -> Json:
        """What a user could start now (GET /offers)."""
        return await self.request("GET", "/offers", params={"user": user})

    async def start(
        self, user: str, server: str, share: str, model: str | None, **more: bool | str | float | None
    ) -> tuple[Json, Json | None]:
        """A session for (user, server) and how to launch its server, on a cluster how to make its pod (POST /sessions).
        `more`: burst, card, environment, wait, kind, run_seconds and deadline, left to the service where they are None.
        Where it has to wait, its place in the queue and None."""
        asked: Json = {"user": user, "server": server, "share": share, "model": model}
        asked |= {key: value for key, value in more.items() if value is not None}
        try:
            body = await self.request("POST", "/sessions", json=asked)
        except Refused as refused:
            if refused.status_code == 404:  # what is not there is that card, or one of that model
                field = "card" if more.get("card") else "model"
                raise Refused(400, f"{field}: {refused.jupyterhub_message}", code=refused.code) from refused
            raise
        if "waiting" in body:
            return body["waiting"], None
        return body["session"], body.get("pod") or body["launch"]

    async def place(self, session: str) -> Json:
        """Where a session that waits stands (GET /queue/ID)."""
        return await self.request("GET", f"/queue/{session}")

    async def live_sessions(self, user: str, server: str) -> list[Json]:
        """Sessions of exactly (user, server) that hold something or wait for it."""
        names = {"user": user, "server": server}
        waiting = await self.request("GET", "/queue", params=names)
        body = await self.request("GET", "/sessions", params=names)
        return [
            session
            for session in [*waiting.get("queue", []), *body.get("sessions", [])]
            if session["user"] == user and session["server"] == server and session["state"] != "ended"
        ]

    async def end(self, session: str) -> Json | None:
        """End a session (DELETE); None if the service knows none such."""
        try:
            return await self.request("DELETE", f"/sessions/{session}")
        except Refused as refused:
            if refused.status_code == 404:
                return None
            raise

    async def end_all(self, user: str, server: str, *, wait: float = 0) -> None:
        """End whatever (user, server) still holds; wait up to `wait` seconds until it is free."""
        deadline = asyncio.get_running_loop().time() + wait
        while sessions := await self.live_sessions(user, server):
            for session in sessions:
                if session["state"] != "ending":
                    await self.end(session["id"])
            if asyncio.get_running_loop().time() >= deadline:
                return
            await asyncio.sleep(0.1)
