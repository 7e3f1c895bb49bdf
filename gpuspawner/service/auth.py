"""Who is asking, and what they may do: JupyterHub's tokens and its scopes."""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Header, Request
from jupyterhub.services.auth import HubAuth
from tornado.web import HTTPError

from gpuspawner.errors import GPUSpawnerError, Unavailable

Action = Literal["read", "resize", "hand-over", "prioritise", "activity", "admin"]
PREFIX = "custom:gpuspawner:"
#: Seconds for which the hub's answer about a token is believed: how long a revoked token still works here.
TOKEN_CACHE_SECONDS = 10

_TOKEN = re.compile(r"[!-~]{1,512}", re.ASCII)
#: Names by which the ledger means a part of gpuspawner and no person.
_OWN_NAMES = ("hub", "node")
#: Handing eighths over is a resize of two sessions; who goes first is about what share somebody has when.
_SCOPE_OF: dict[Action, Action] = {"hand-over": "resize", "prioritise": "resize"}


class NotSignedIn(GPUSpawnerError):
    """No valid token came with the request (401)."""

    code = "not_signed_in"
    status = 401


@dataclass(frozen=True)
class Principal:
    """Someone with a name (for the ledger) and JupyterHub scopes. `hub` is the hub itself, who may do all. `user`: the
    person whose token it is; None for services."""

    name: str
    scopes: frozenset[str] = frozenset()
    hub: bool = False
    user: str | None = None

    def may(self, action: Action, user: str | None = None, server: str | None = None) -> bool:
        """Whether it may do `action` to a user's server; with no user named, whether to anything at all
        (`admin`: to everything)."""
        if self.hub or f"{PREFIX}admin" in self.scopes:
            return True
        scoped = _SCOPE_OF.get(action, action)
        for scope in self.scopes:
            name, _, narrowed = scope.partition("!")
            if name != f"{PREFIX}{scoped}":
                continue
            if not narrowed or (user is None and action != "admin"):
                return True
            if narrowed == f"user={user}" or (server is not None and narrowed == f"server={user}/{server}"):
                return True
        return False

    def may_all_of_own(self, action: Action) -> bool:
        """Whether it may do `action` to every server of the person whose token it is."""
        return self.user is not None and self.may(action, self.user)

    def may_everywhere(self, action: Action) -> bool:
        """Whether it may do `action` to whatever server, not being narrowed to some."""
        return self.hub or not self.scopes.isdisjoint((f"{PREFIX}admin", f"{PREFIX}{action}"))


class Authenticator:
    """Turns an Authorization header into a Principal by asking the hub."""

    def __init__(self, hub_auth: HubAuth, service_token: str) -> None:
        self._hub_auth = hub_auth
        self._service_token = self.own_token = service_token.encode()

    async def principal(self, authorization: str | None) -> Principal:
        """The caller. Raises NotSignedIn, or Unavailable when the hub does not answer."""
        kind, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if kind.lower() not in ("bearer", "token") or not _TOKEN.fullmatch(token):
            raise NotSignedIn("Send a JupyterHub token in the Authorization header: 'Bearer <token>'.")
        if hmac.compare_digest(token.encode(), self._service_token):
            return Principal("hub", hub=True)
        try:
            model: dict[str, Any] | None = await self._hub_auth.user_for_token(token, sync=False)
        except HTTPError as error:
            raise Unavailable("JupyterHub does not answer, so the token cannot be checked now.") from error
        if not model:
            raise NotSignedIn("JupyterHub does not know this token, or it has expired.")
        user = str(model["name"]) if model.get("kind", "user") == "user" else None
        return Principal(_ledger_name(model), frozenset(model.get("scopes") or ()), user=user)


def signed_in(authenticator: Authenticator) -> Callable[..., Awaitable[Principal]]:
    """The caller of a request, as FastAPI's dependency."""

    async def principal(request: Request, authorization: Annotated[str | None, Header()] = None) -> Principal:
        found = await authenticator.principal(authorization)
        request.scope["gpuspawner.principal"] = found  # for the audit
        return found

    return principal


def _ledger_name(model: dict[str, Any]) -> str:
    """The name of a user as it is; of others, and of users named like a part of ours, with their kind before it.
    No user has a name with a slash in it."""
    name, kind = str(model["name"]), str(model.get("kind", "user"))
    return name if kind == "user" and name not in _OWN_NAMES else f"{kind}/{name}"
