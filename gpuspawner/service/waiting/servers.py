"""Stops and starts people's servers through the hub, which so knows of it."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import quote

import httpx

from gpuspawner import tls
from gpuspawner.errors import GPUSpawnerError, Unavailable

#: Longer than the hub waits for a start before it answers that it is under way.
_TIMEOUT = 40.0


class HubRefuses(GPUSpawnerError):
    """The hub does not let the service do it (502)."""

    code = "hub_refuses"
    status = 502


class Servers(Protocol):
    """People's servers. Methods raise Unavailable where the hub does not answer, HubRefuses where it says no."""

    def options(self, user: str, server: str) -> dict[str, Any]:
        """The user_options of a server that runs."""
        ...

    def stop(self, user: str, server: str) -> None:
        """Stop it. Where it is being stopped, or does not run, nothing happens."""
        ...

    def start(self, user: str, server: str, options: dict[str, Any]) -> None:
        """Start it. Where it is being started, or runs, nothing happens."""
        ...


class HubServers:
    """By the hub's API, with the service's token: read:servers, start:servers and delete:servers. Thread-safe."""

    def __init__(self, hub_api: str, token: str) -> None:
        self._client = httpx.Client(
            base_url=hub_api,
            headers={"Authorization": f"Bearer {token}"},
            timeout=_TIMEOUT,
            transport=httpx.HTTPTransport(verify=tls.context()),
        )

    def options(self, user: str, server: str) -> dict[str, Any]:
        """The user_options of a server that runs."""
        model = self._ask("GET", f"/users/{quote(user, safe='')}").json()
        found = (model.get("servers") or {}).get(server) or {}
        return dict(found.get("user_options") or {})

    def stop(self, user: str, server: str) -> None:
        """Stop it."""
        self._ask("DELETE", _path(user, server), allowed=(404,))

    def start(self, user: str, server: str, options: dict[str, Any]) -> None:
        """Start it."""
        self._ask("POST", _path(user, server), allowed=(400, 409), json=options)

    def _ask(self, method: str, path: str, allowed: tuple[int, ...] = (), **more: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **more)
        except httpx.HTTPError as error:
            raise Unavailable(f"JupyterHub does not answer ({type(error).__name__}).") from error
        if answer.status_code >= 500:
            raise Unavailable(f"JupyterHub answered with {answer.status_code}.")
        if answer.status_code >= 400 and answer.status_code not in allowed:
            raise HubRefuses(f"JupyterHub refuses it ({answer.status_code}).")
        return answer


def _path(user: str, server: str) -> str:
    name = quote(user, safe="")
    return f"/users/{name}/servers/{quote(server, safe='')}" if server else f"/users/{name}/server"
