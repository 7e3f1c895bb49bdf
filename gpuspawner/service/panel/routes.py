"""The page's own paths, its stream, and the acts that only it has so far: cordons."""

import hashlib
import html
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse

from gpuspawner.errors import GPUSpawnerError, NotAllowed, NotFound, Unavailable
from gpuspawner.service import schemas, views
from gpuspawner.service.auth import Authenticator, NotSignedIn, Principal, signed_in
from gpuspawner.service.cordons import THIS_MACHINE
from gpuspawner.service.panel.board import Viewer
from gpuspawner.service.panel.feed import Feed
from gpuspawner.service.panel.signin import PageSignIn, is_secure
from gpuspawner.service.sessions import SessionService

STATIC = Path(__file__).parent / "static"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_FILES = {"panel.js": "text/javascript; charset=utf-8", "panel.css": "text/css; charset=utf-8"}


def panel_routes(sessions: SessionService, feed: Feed | None, authenticator: Authenticator) -> APIRouter:
    """GET /panel/events, GET /cordons, POST /cordons, POST /cordons/lift."""
    router = APIRouter()
    Caller = Annotated[Principal, Depends(signed_in(authenticator))]

    @router.get("/panel/events")
    async def events(
        caller: Caller,
        authorization: Annotated[str | None, Header()] = None,
        last_event_id: Annotated[str | None, Header(max_length=64)] = None,
    ) -> StreamingResponse:
        """Cards and sessions as they change, as server-sent events: for administrators all, else the caller's own."""
        if not caller.may("read"):
            raise NotAllowed("Your token lacks the scope custom:gpuspawner:read.")

        async def still() -> Viewer | None:
            try:
                return Viewer(await authenticator.principal(authorization))
            except NotSignedIn:
                return None
            except GPUSpawnerError:  # the hub is away: who was signed in stays so
                return Viewer(caller)

        assert feed is not None
        stream = feed.follow(Viewer(caller), last_event_id, still)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    def admin(caller: Principal) -> None:
        if not caller.may("admin"):
            raise NotAllowed("Only administrators take cards and nodes out of use.")

    def named(target: schemas.CordonTarget) -> str:
        return "" if target.kind == "node" and target.name == THIS_MACHINE else target.name

    @router.get("/cordons")
    def cordons(caller: Caller) -> schemas.Cordons:
        """Cards and nodes on which nothing starts or grows. Administrators only."""
        admin(caller)
        return schemas.Cordons(cordons=[views.cordon(each) for each in sessions.cordons.all()])

    @router.post("/cordons", status_code=201)
    def cordon(body: schemas.CordonRequest, caller: Caller) -> schemas.Cordon:
        """Let nothing start or grow on a card or node, and with drain_seconds end what runs there. Administrators."""
        admin(caller)
        sessions.must_lead()
        added = sessions.cordons.add(body.kind, named(body), caller.name, body.reason, body.drain_seconds)
        return views.cordon(added)

    @router.post("/cordons/lift")
    def lift(body: schemas.CordonTarget, caller: Caller) -> schemas.Cordon:
        """Take a card or node back into use; what a drain has not ended yet runs on. Administrators only."""
        admin(caller)
        sessions.must_lead()
        return views.cordon(sessions.cordons.lift(body.kind, named(body)))

    return router


def page_routes(sign_in: PageSignIn, authenticator: Authenticator) -> APIRouter:
    """The page, its files, and signing in."""
    router = APIRouter(include_in_schema=False)

    @router.get("/", response_class=HTMLResponse)
    async def page(request: Request) -> HTMLResponse:
        """The page. Who is not signed in gets it empty; its program keeps the address and goes to sign in."""
        token = sign_in.token(request.scope)
        if token is not None and not await _valid(authenticator, token):
            token = None
        # what stands in the page is for the person who opened it, and for no program on another page
        if token is not None and request.headers.get("sec-fetch-dest", "document") != "document":
            token = None
        answer = HTMLResponse(_page(sign_in, None if token is None else sign_in.proof(token)), headers=_HEADERS)
        if token is None:
            sign_in.forget(answer)
        return answer

    @router.get("/static/{name}")
    def file(name: Literal["panel.js", "panel.css"]) -> Response:
        """The page's program and style."""
        try:
            content = (STATIC / name).read_bytes()
        except OSError as error:
            raise NotFound("The page was not built here: `make setup` builds it.") from error
        kept = "public, max-age=31536000, immutable"
        headers = {"Cache-Control": kept, "X-Content-Type-Options": "nosniff"}
        return Response(content, media_type=_FILES[name], headers=headers)

    @router.get("/login")
    def login(request: Request) -> Response:
        """To the hub, which sends back."""
        where, cookie = sign_in.begin(is_secure(request.scope))
        answer = RedirectResponse(where, 302, headers={"Cache-Control": "no-store"})
        answer.headers.append("set-cookie", cookie)
        return answer

    @router.get("/oauth_callback")
    async def callback(request: Request) -> Response:
        """Back from the hub."""
        try:
            cookies = await sign_in.finish(request)
        except GPUSpawnerError as error:
            return HTMLResponse(_problem(sign_in, error.message), error.status, headers=_HEADERS)
        answer = RedirectResponse(sign_in.prefix, 302, headers={"Cache-Control": "no-store"})
        for cookie in cookies:
            answer.headers.append("set-cookie", cookie)
        return answer

    return router


async def _valid(authenticator: Authenticator, token: str) -> bool:
    try:
        await authenticator.principal(f"Bearer {token}")
    except NotSignedIn:
        return False
    except Unavailable:  # the page itself says what is not there
        return True
    return True


def _version(name: str) -> str:
    try:
        return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    except OSError:
        return "none"


def _head(sign_in: PageSignIn, title: str) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{html.escape(sign_in.prefix)}static/panel.css?v={_version("panel.css")}">
"""


def _page(sign_in: PageSignIn, proof: str | None) -> str:
    attributes = {
        "data-prefix": sign_in.prefix,
        "data-hub": sign_in.hub_url,
        **({"data-xsrf": proof} if proof is not None else {}),
    }
    written = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items())
    script = f"{html.escape(sign_in.prefix)}static/panel.js?v={_version('panel.js')}"
    return f"""{_head(sign_in, "Cards")}<script defer src="{script}"></script>
</head>
<body>
<div id="panel" {written}><noscript>This page needs JavaScript.</noscript></div>
</body>
</html>
"""


def _problem(sign_in: PageSignIn, message: str) -> str:
    return f"""{_head(sign_in, "Not signed in")}</head>
<body>
<main class="gpa-problem"><h1>Not signed in</h1><p>{html.escape(message)}</p>
<p><a href="{html.escape(sign_in.prefix)}">Open the page again</a></p></main>
</body>
</html>
"""
