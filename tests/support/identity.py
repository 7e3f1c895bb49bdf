"""A provider of identities on the loopback that speaks as GitHub, GitLab and an OpenID Connect provider do.

What each path answers follows the providers' documentation: docs.github.com/en/rest, docs.gitlab.com/api, and
OpenID Connect Core 1.0 and Discovery 1.0. Codes work once, for the client, address and verifier they were made for.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode

import uvicorn
from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from .common import free_ports, until

CLIENT = "hub-client"
SECRET = "a client's secret, for tests only"
#: Beside the imports, where FastAPI looks for what an annotation names.
Authorization = Annotated[str, Header()]


@dataclass
class Person:
    """Somebody with an account."""

    login: str
    groups: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    """Teams of an organisation that is not ours."""


@dataclass
class Provider:
    """What the provider knows. `signed_in` is who sits at the browser."""

    url: str
    callback: str
    organization: str
    people: dict[str, Person] = field(default_factory=dict)
    signed_in: str = ""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    tokens: dict[str, Person] = field(default_factory=dict)

    def authorize(self, asked: dict[str, str]) -> str:
        """Where the browser goes on to, for whoever is signed in."""
        if asked.get("client_id") != CLIENT or asked.get("redirect_uri") != self.callback:
            raise HTTPException(400, "not a client of ours, or not its address")
        code = secrets.token_urlsafe()
        self.codes[code] = {**asked, "login": self.signed_in}
        return f"{self.callback}?{urlencode({'code': code, 'state': asked.get('state', '')})}"

    def token(self, form: dict[str, str], authorization: str) -> str:
        """A token for a code."""
        client = (form.get("client_id"), form.get("client_secret"))
        if authorization.startswith("Basic "):
            client = tuple(base64.b64decode(authorization[6:]).decode().split(":", 1))  # type: ignore[assignment]
        asked = self.codes.pop(form.get("code", ""), None)
        if client != (CLIENT, SECRET) or asked is None or form.get("redirect_uri") != self.callback:
            raise HTTPException(401, "no such code for this client")
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != asked.get("code_challenge"):
            raise HTTPException(401, "the verifier is another one")
        token = secrets.token_urlsafe()
        self.tokens[token] = self.people[asked["login"]]
        return token

    def who(self, authorization: str) -> Person:
        """Whose token it is."""
        person = self.tokens.get(authorization.partition(" ")[2])
        if person is None:
            raise HTTPException(401, "no such token")
        return person


def _app(provider: Provider) -> FastAPI:
    app = FastAPI()

    @app.get("/login/oauth/authorize")
    @app.get("/oauth/authorize")
    @app.get("/realms/lab/auth")
    def authorize(request: Request) -> RedirectResponse:
        return RedirectResponse(provider.authorize(dict(request.query_params)))

    @app.post("/login/oauth/access_token")
    @app.post("/oauth/token")
    @app.post("/realms/lab/token")
    async def token(request: Request, authorization: Authorization = "") -> dict[str, Any]:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        made = provider.token(form, authorization)
        return {"access_token": made, "token_type": "bearer", "scope": form.get("scope", "")}

    # GitHub
    @app.get("/api/v3/user")
    @app.get("/api/v4/user")
    def user(authorization: Authorization) -> dict[str, Any]:
        login = provider.who(authorization).login
        number = 1 + list(provider.people).index(login)
        return {"id": number, "login": login, "username": login, "email": None}  # who hides theirs has none

    @app.get("/api/v3/user/teams")
    def teams(authorization: Authorization) -> list[dict[str, Any]]:
        person = provider.who(authorization)
        ours = [{"slug": name, "organization": {"login": provider.organization}} for name in person.groups]
        return ours + [{"slug": name, "organization": {"login": "others"}} for name in person.elsewhere]

    @app.get("/api/v3/orgs/{name}/members/{login}")
    def organization(name: str, login: str, authorization: Authorization) -> Response:
        provider.who(authorization)
        member = name == provider.organization and bool(provider.people[login].groups)
        return Response(status_code=204 if member else 404)

    # GitLab
    @app.get("/api/v4/version")
    def version(authorization: Authorization) -> dict[str, str]:
        provider.who(authorization)
        return {"version": "17.0.0", "revision": "0"}

    @app.get("/api/v4/groups")
    def groups(response: Response, authorization: Authorization, page: int = 1) -> list[dict[str, str]]:
        mine = provider.who(authorization).groups
        response.headers["X-Next-Page"] = str(page + 1) if page < len(mine) else ""
        return [{"full_path": path} for path in mine[page - 1 : page]]  # one a page

    @app.get("/api/v4/groups/{name}/members/all/{number}")
    def member(name: str, number: int, authorization: Authorization) -> dict[str, int]:
        provider.who(authorization)
        if name not in list(provider.people.values())[number - 1].groups:
            raise HTTPException(404, "not a member")
        return {"id": number}

    # OpenID Connect
    @app.get("/realms/lab/.well-known/openid-configuration")
    def discovery() -> dict[str, str]:
        issuer = f"{provider.url}/realms/lab"
        return {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/auth",
            "token_endpoint": f"{issuer}/token",
            "userinfo_endpoint": f"{issuer}/userinfo",
        }

    @app.get("/realms/lab/userinfo")
    def userinfo(authorization: Authorization) -> dict[str, Any]:
        person = provider.who(authorization)
        return {"sub": f"sub-{person.login}", "preferred_username": person.login, "groups": person.groups}

    return app


@contextmanager
def provider(organization: str, *people: Person) -> Iterator[Provider]:
    """The provider, running. Its client's address, `callback`, is set by whoever knows it."""
    port = free_ports(1)
    made = Provider(f"http://127.0.0.1:{port}", "", organization, {person.login: person for person in people})
    server = uvicorn.Server(uvicorn.Config(_app(made), port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started, 30, "the provider to come up")
        yield made
    finally:
        server.should_exit = True
        thread.join(30)
