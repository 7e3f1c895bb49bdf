"""Signing in to the page: JupyterHub's OAuth, a cookie, and when that cookie counts.

A browser sends cookies with whatever any page asks for. So the cookie counts only together with a header that repeats
what stands in our own page: another site can neither read that nor send such a header.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlencode

import httpx
from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from tornado.web import create_signed_value, decode_signed_value

from gpuspawner import tls
from gpuspawner.errors import GPUSpawnerError, Unavailable

COOKIE = "gpuspawner-page"
STATE_COOKIE = "gpuspawner-page-state"
#: Seconds within which a sign-in has to come back from the hub.
STATE_SECONDS = 600
DAYS = 14


class SignInFailed(GPUSpawnerError):
    """The hub's answer to a sign-in does not fit (403)."""

    code = "sign_in"
    status = 403


class PageSignIn:
    """Knows the page's cookies. `token`: the service's own at the hub, from which the cookies' key is derived.

    `prefix`: of the service, below which the cookies are sent. `hub_api`: JupyterHub's API for this process.
    """

    def __init__(self, token: str, prefix: str, hub_api: str, service: str = "gpuspawner") -> None:
        self.prefix = f"{prefix.rstrip('/')}/"
        self.hub_url = f"{self.prefix.removesuffix(f'services/{service}/')}hub/"
        self.callback = f"{self.prefix}oauth_callback"
        self._client_id = f"service-{service}"
        self._token = token
        self._hub_api = hub_api
        self._key = hashlib.sha256(b"gpuspawner page\0" + token.encode()).hexdigest()

    def begin(self, secure: bool) -> tuple[str, str]:
        """Where to send the browser, and the Set-Cookie that ties the answer to this browser."""
        state = secrets.token_urlsafe(24)
        asked = {"client_id": self._client_id, "redirect_uri": self.callback, "response_type": "code", "state": state}
        return f"{self.hub_url}api/oauth2/authorize?{urlencode(asked)}", self._set(
            STATE_COOKIE, state, STATE_SECONDS, secure
        )

    async def finish(self, request: Request) -> list[str]:
        """The Set-Cookie headers of somebody whom the hub sent back. Raises SignInFailed, Unavailable."""
        state = self._read(STATE_COOKIE, _cookies(request.scope), STATE_SECONDS / 86400)
        given, code = request.query_params.get("state", ""), request.query_params.get("code", "")
        if not state or not code or not hmac.compare_digest(state.encode(), given.encode()):
            raise SignInFailed("This sign-in was begun elsewhere or too long ago. Open the page again.")
        secure = is_secure(request.scope)
        token = await self._exchange(code)
        return [self._set(COOKIE, token, DAYS * 86400, secure), self._set(STATE_COOKIE, "", 0, secure)]

    async def _exchange(self, code: str) -> str:
        asked = {
            "client_id": self._client_id,
            "client_secret": self._token,
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.callback,
        }
        try:
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(verify=tls.context()), timeout=20) as hub:
                answer = await hub.post(f"{self._hub_api.rstrip('/')}/oauth2/token", data=asked)
            body: Any = answer.json() if answer.is_success else {}
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable(
                "JupyterHub does not answer, so nobody can sign in now. Try again in a minute."
            ) from error
        token = body.get("access_token") if isinstance(body, dict) else None
        if not isinstance(token, str) or not token:
            raise SignInFailed("JupyterHub does not know this sign-in. Open the page again.")
        return token

    def token(self, scope: Scope) -> str | None:
        """The token in the page's cookie; None where there is none that we made."""
        return self._read(COOKIE, _cookies(scope), DAYS)

    def proof(self, token: str) -> str:
        """What our page repeats in the header X-XSRFToken."""
        return hmac.new(self._key.encode(), token.encode(), hashlib.sha256).hexdigest()

    def forget(self, response: Response) -> None:
        """Take the page's cookie away."""
        response.headers.append("set-cookie", self._set(COOKIE, "", 0, False))

    def _read(self, name: str, cookies: SimpleCookie, days: float) -> str | None:
        if name not in cookies:
            return None
        found = decode_signed_value(self._key, name, cookies[name].value, max_age_days=days)
        return None if found is None else found.decode("ascii", "replace")

    def _set(self, name: str, value: str, seconds: int, secure: bool) -> str:
        signed = create_signed_value(self._key, name, value).decode() if value else ""
        # Lax: what the hub sends back is a navigation that another site may have begun (its sign-in)
        flags = f"; Path={self.prefix}; Max-Age={seconds}; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"
        return f'{name}="{signed}"{flags}'


class CookieDoor:
    """ASGI middleware before all others: turns the page's cookie into the Authorization header that the rest knows."""

    def __init__(self, app: ASGIApp, sign_in: PageSignIn, api: str) -> None:
        self._app = app
        self._sign_in = sign_in
        self._api = f"{api}/"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and scope["path"].startswith(self._api):
            headers = dict(scope["headers"])
            proof = headers.get(b"x-xsrftoken", b"")
            if b"authorization" not in headers and proof:
                token = self._sign_in.token(scope)
                if token and hmac.compare_digest(self._sign_in.proof(token).encode(), proof):
                    scope = {**scope, "headers": [*scope["headers"], (b"authorization", f"Bearer {token}".encode())]}
        await self._app(scope, receive, send)


def is_secure(scope: Scope) -> bool:
    """Whether the browser came by https, as the proxies before us say."""
    said = dict(scope["headers"]).get(b"x-forwarded-proto", b"").decode("latin-1").partition(",")[0].strip()
    return bool((said or scope.get("scheme")) == "https")


def _cookies(scope: Scope) -> SimpleCookie:
    found = SimpleCookie()
    for name, value in scope["headers"]:
        if name == b"cookie":
            try:
                found.load(value.decode("latin-1"))
            except CookieError:
                continue
    return found
