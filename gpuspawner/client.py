"""A client of the service and, for starting and stopping servers, of JupyterHub.

from gpuspawner.client import Client
with Client.from_env() as client:
    client.resize(client.session("ann")["id"], "1/2")
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx

from gpuspawner import tls
from gpuspawner.errors import GPUSpawnerError, NotFound, Unavailable
from gpuspawner.state import Settings

Json = dict[str, Any]


class Refused(GPUSpawnerError):
    """The service or the hub says no; `code` and `status` are theirs."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        words = str(error.get("message") or f"The answer was status {status}.")
        super().__init__(words, code=str(error.get("code") or f"http_{status}"), field=error.get("field"))
        self.status = status


class Client:
    """Speaks to the service at `service` (its address ending in /api/v1) and the hub at `hub` (ending in /hub/api;
    None: what needs the hub is refused). Raises Refused where they say no, Unavailable where they do not answer."""

    def __init__(
        self, service: str, token: str, hub: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._service = httpx.Client(
            base_url=service, headers=headers, timeout=60, transport=transport or _transport(), trust_env=False
        )
        self._hub = None
        if hub is not None:
            self._hub = httpx.Client(base_url=hub, headers=headers, timeout=60, transport=_transport(), trust_env=False)

    @classmethod
    def from_env(cls, settings: Settings | None = None, env: Mapping[str, str] = os.environ) -> Client:
        """By JUPYTERHUB_API_TOKEN, JUPYTERHUB_API_URL and GPUSPAWNER_SERVICE_URL, which every server has; without a
        token, with the service's own of this machine, which may do everything but start and stop servers."""
        settings = settings or Settings.from_env(env)
        token = env.get("JUPYTERHUB_API_TOKEN")
        hub = env.get("JUPYTERHUB_API_URL") or settings.hub_api
        if token:
            return cls(env.get("GPUSPAWNER_SERVICE_URL") or settings.service_api, token, hub)
        try:
            token = settings.secret("service_token")
        except OSError:
            raise Unavailable(f"It was never started with the state folder {settings.state}.") from None
        # at its socket: a port may belong to somebody else
        transport = httpx.HTTPTransport(verify=tls.context(), uds=str(settings.service_socket))
        return cls(settings.service_api, token, transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        for client in (self._service, self._hub):
            if client is not None:
                client.close()

    # -- the service ----------------------------------------------------------------------------------------

    def offers(self, user: str | None = None) -> Json:
        """What can be started now, for `user` where one is named."""
        return self._ask("GET", "/offers", params=_given(user=user))

    def sessions(self, user: str | None = None, server: str | None = None, *, ended: bool = False) -> list[Json]:
        """Sessions, newest first."""
        found: list[Json] = self._ask("GET", "/sessions", params=_given(user=user, server=server, ended=ended or None))[
            "sessions"
        ]
        return found

    def session(self, user: str | None = None, server: str | None = None) -> Json:
        """The session of a user's server; without names the only one that the token may see. Raises NotFound."""
        found = self.sessions(user, server)
        if len(found) != 1:
            raise NotFound(f"There are {len(found)} such sessions; name the user and the server of one.")
        return found[0]

    def resize(self, session: str, share: str) -> Json:
        """Another share for a running session."""
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        return self._ask("PATCH", f"/sessions/{quote(session, safe='')}", json={"share": share}, headers=headers)

    def queue(self) -> Json:
        """Who waits for a share, the next first (`queue`), and how many in all (`length`)."""
        return self._ask("GET", "/queue")

    def prioritise(self, session: str, reason: str, **changes: Any) -> Json:
        """Set `kind` (its class), `deadline` (ISO 8601 with an offset; None: none), or both of somebody who waits."""
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        body = {**changes, "reason": reason}
        return self._ask("PATCH", f"/queue/{quote(session, safe='')}", json=body, headers=headers)

    def cost(self, by: str = "user", month: str | None = None) -> Json:
        """What was used and charged in a month, the current one by default."""
        return self._ask("GET", "/cost", params=_given(by=by, month=month))

    def policy(self) -> Json:
        """The policy in force."""
        return self._ask("GET", "/policy")

    def explain(self, user: str) -> Json:
        """What the policy means for a user."""
        return self._ask("GET", f"/policy/users/{quote(user, safe='')}")

    def verify(self, head: str | None = None) -> Json:
        """Whether the ledger's chain is whole."""
        return self._ask("GET", "/ledger/verify", params=_given(head=head))

    def correct(self, row: int, amount: str, reason: str) -> Json:
        """Charge more or less than a ledger row says."""
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        body = {"row": row, "amount": amount, "reason": reason}
        return self._ask("POST", "/ledger/corrections", json=body, headers=headers)

    def export(self, to: BinaryIO, file_format: str = "csv") -> None:
        """Write the ledger's rows into a file as csv, json (lines) or parquet."""
        for piece in self._pieces("/ledger/export", {"format": file_format}):
            to.write(piece)

    def trace(self, to: BinaryIO, month: str | None = None, *, names: bool = False) -> None:
        """Write who wanted what when in a month (the current one) into a file for `gpuspawner queue replay`."""
        for piece in self._pieces("/ledger/trace", _given(month=month, names=names or None)):
            to.write(piece)

    # -- JupyterHub -----------------------------------------------------------------------------------------

    def start(self, share: str, server: str = "", user: str | None = None, **options: Any) -> None:
        """Ask the hub for a server with that share; it is there when its session says `running`."""
        self._ask_hub("POST", self._server(server, user), json={"share": share, **options})

    def release(self, server: str = "", user: str | None = None) -> None:
        """Stop a server, which gives its share back."""
        self._ask_hub("DELETE", self._server(server, user))

    def _server(self, server: str, user: str | None) -> str:
        name = user or str(self._ask_hub("GET", "/user")["name"])
        place = f"/users/{quote(name, safe='')}"
        return f"{place}/servers/{quote(server, safe='')}" if server else f"{place}/server"

    # -- requests -------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, **more: Any) -> Json:
        return _answer(self._service, method, path, **more)

    def _ask_hub(self, method: str, path: str, **more: Any) -> Json:
        if self._hub is None:
            raise Unavailable("Set JUPYTERHUB_API_TOKEN to a token of yours; the hub's token page makes one.")
        return _answer(self._hub, method, path, **more)

    def _pieces(self, path: str, params: Mapping[str, Any]) -> Iterator[bytes]:
        try:
            with self._service.stream("GET", path, params=dict(params)) as answer:
                if not answer.is_success:
                    answer.read()
                    _refuse(answer)
                yield from answer.iter_bytes()
        except httpx.TransportError as error:
            raise Unavailable("It is not running.") from error


def _transport() -> httpx.HTTPTransport:
    return httpx.HTTPTransport(verify=tls.context())


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _answer(client: httpx.Client, method: str, path: str, **more: Any) -> Json:
    try:
        answer = client.request(method, path, **more)
    except httpx.TransportError as error:
        raise Unavailable("It is not running.") from error
    if not answer.is_success:
        _refuse(answer)
    if not answer.content:
        return {}
    try:
        found: Json = answer.json()
    except ValueError:
        raise Unavailable("The answer is not understood.") from None
    return found


def _refuse(answer: httpx.Response) -> None:
    try:
        body = answer.json()
    except ValueError:
        body = {}
    error = body.get("error") if isinstance(body, dict) else None
    raise Refused(answer.status_code, error if isinstance(error, dict) else body if isinstance(body, dict) else {})
