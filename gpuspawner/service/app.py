"""The REST API: FastAPI over SessionService, authorised by JupyterHub's tokens and scopes."""

import json
import logging
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuspawner import __version__
from gpuspawner.errors import GPUSpawnerError, InvalidInput, NotAllowed, NotFound, Unavailable, shorten
from gpuspawner.queue.forecast import Expected
from gpuspawner.queue.rules import CLASSES
from gpuspawner.service import schemas, views
from gpuspawner.service.auth import Action, Authenticator, Principal, signed_in
from gpuspawner.service.ledger.routes import ledger_routes
from gpuspawner.service.panel.board import Board
from gpuspawner.service.panel.feed import Feed
from gpuspawner.service.panel.routes import page_routes, panel_routes
from gpuspawner.service.panel.signin import CookieDoor, PageSignIn
from gpuspawner.service.policy.book import View
from gpuspawner.service.policy.decide import Forbidden, Policy
from gpuspawner.service.policy.routes import policy_routes
from gpuspawner.service.requests.desk import Desk
from gpuspawner.service.requests.events import Events
from gpuspawner.service.requests.metrics import Metrics
from gpuspawner.service.requests.rate import RateLimit
from gpuspawner.service.requests.records import Records
from gpuspawner.service.requests.routes import request_routes
from gpuspawner.service.sessions import SessionService
from gpuspawner.service.tables import SessionRow
from gpuspawner.service.tariff import Pricing
from gpuspawner.service.waiting import routes as waiting
from gpuspawner.service.waiting import schemas as queue_schemas
from gpuspawner.service.waiting.entries import Entry, Wish
from gpuspawner.service.waiting.routes import queue_routes
from gpuspawner.service.watching import Courier, Watcher
from gpuspawner.share import GPUShare

log = logging.getLogger(__name__)

#: Larger than any request of this API by far.
MAX_BODY_BYTES = 64 * 1024


def create_app(
    sessions: SessionService,
    authenticator: Authenticator,
    tariff: Pricing,
    prefix: str = "/",
    choose_card: bool = False,
    burst: bool = False,
    rate: RateLimit | None = None,
    events: Events | None = None,
    sign_in: PageSignIn | None = None,
) -> FastAPI:
    """The service as an ASGI app below `prefix`. It watches the fleet while it runs. `choose_card`: whether a start
    may name the card. `burst`: what a start that does not say gets. `rate`: how many requests a token may make.
    `sign_in`: how people sign in to the page about cards; None where there is no page."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        watcher, courier = Watcher(sessions), Courier(sessions)
        watcher.start()
        if sessions.queue.parker.on:
            courier.start()
        yield
        courier.stop()
        await run_in_threadpool(watcher.stop)
        await run_in_threadpool(sessions.fleet.close)

    api = f"{prefix.rstrip('/')}/api/v1"
    app = FastAPI(
        title="gpuspawner",
        version=__version__,
        lifespan=lifespan,
        openapi_url=f"{api}/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    records = None if sessions is None else Records(sessions.store.engine, events)
    metrics = Metrics(sessions)
    own = getattr(authenticator, "own_token", b"")
    app.add_middleware(Desk, records=records, rate=rate or RateLimit(), metrics=metrics, prefix=api, own_token=own)
    app.add_middleware(LimitBody)
    if sign_in is not None:
        app.add_middleware(CookieDoor, sign_in=sign_in, api=api)
    _add_error_handlers(app)
    app.include_router(_router(sessions, authenticator, tariff, choose_card, burst), prefix=api, responses=_ERRORS)
    feed = None if sessions is None else Feed(Board(sessions, tariff))
    for more in (
        policy_routes(sessions, authenticator),
        ledger_routes(sessions, authenticator),
        request_routes(records, metrics, authenticator),
        panel_routes(sessions, feed, authenticator),
        queue_routes(sessions, authenticator),
    ):
        app.include_router(more, prefix=api, responses=_ERRORS)
    if sign_in is not None:
        app.include_router(page_routes(sign_in, authenticator), prefix=prefix.rstrip("/"))
    return app


_ERRORS: dict[int | str, dict[str, object]] = {
    status: {"model": schemas.Error} for status in (401, 403, 404, 409, 422, 429, 503)
}


def _router(
    sessions: SessionService, authenticator: Authenticator, tariff: Pricing, choose_card: bool, burst: bool
) -> APIRouter:
    router = APIRouter()

    Caller = Annotated[Principal, Depends(signed_in(authenticator))]

    def may(caller: Principal, action: Action, row: SessionRow) -> bool:
        return sessions.book.may(caller, action, row.user, row.server)

    def visible(caller: Principal, session: str, action: Action = "read") -> SessionRow:
        row = sessions.store.session(session) if len(session) <= 32 else None
        if row is None or not (may(caller, "read", row) or (action != "read" and may(caller, action, row))):
            raise NotFound("There is no such session, or you may not see it.", field="session", given=session)
        return row

    def shown(row: SessionRow) -> schemas.Session:
        view = sessions.book.view_or_none(row.user)
        found = views.session(row, sessions.fleet, tariff, sessions.notices(row), view)
        views.no_growth(found, sessions.budgets.why_not(row.user))
        return waiting.add_parking(found, row, sessions.queue.parker)

    @router.get("/health")
    def health() -> schemas.Health:
        """Whether the service answers. Needs no token."""
        return schemas.Health(status="ok", version=__version__, cards=len(sessions.fleet.cards()))

    @router.get("/offers")
    def offers(
        caller: Caller, user: Annotated[str | None, Query(min_length=1, max_length=255)] = None
    ) -> schemas.Offers:
        """The shares that exist here, and which of them the caller, or a user of theirs, could start now."""
        if not caller.may("read"):
            raise NotAllowed("Your token lacks the scope custom:gpuspawner:read.")
        book = sessions.book
        if user not in (None, caller.user) and not caller.may("admin", user):
            raise NotAllowed("Only administrators may see what other users are offered.")
        whose = user or caller.user
        view = View(Policy(), ()) if whose is None else book.view(whose)
        kind, kinds = ("interactive", CLASSES) if whose is None else book.kinds_of(whose)

        def would_wait(share: GPUShare) -> Expected | None:
            return sessions.queue.outlook.would_wait(kind, share)

        found = views.offers(sessions.fleet, tariff, view, choose_card, burst, would_wait)
        views.no_start(found, None if whose is None else sessions.budgets.why_not(whose))
        found.kinds = [schemas.KindOffer(name=name, default=name == kind) for name in kinds]
        found.policy_problem = book.source.problem if caller.may("admin") else None
        return found

    @router.get("/sessions")
    def list_sessions(
        caller: Caller,
        user: Annotated[str | None, Query(max_length=255)] = None,
        server: Annotated[str | None, Query(max_length=255)] = None,
        ended: bool = False,
        limit: Annotated[int | None, Query(ge=1, le=1000, description="left out: all")] = None,
        after: Annotated[str | None, Query(max_length=32, description="those that follow this session")] = None,
    ) -> schemas.Sessions:
        """The sessions that the caller may see, newest first; without those that have ended, unless asked for."""
        states = () if ended else ("starting", "running", "ending")
        rows = [row for row in sessions.store.sessions(user, server, states) if may(caller, "read", row)]
        if after is not None:
            known = [row.id for row in rows]
            if after not in known:
                raise NotFound("after: there is no such session in this list.", field="after", given=after)
            rows = rows[known.index(after) + 1 :]
        if limit is not None and len(rows) > limit:
            shown_rows = rows[:limit]
            return schemas.Sessions(sessions=[shown(row) for row in shown_rows], next=shown_rows[-1].id)
        return schemas.Sessions(sessions=[shown(row) for row in rows])

    @router.post(
        "/sessions", status_code=201, response_model=schemas.Started, responses={202: {"model": queue_schemas.Waits}}
    )
    def start(body: schemas.SessionRequest, caller: Caller, response: Response) -> schemas.Started | Response:
        """Start a session for a user's server, or with `wait` put it into the queue (202). Only the hub may ask."""
        if not caller.hub:
            raise NotAllowed("Only the hub starts sessions. Start a server in JupyterHub.")
        share = _share(body.share, body.model)
        if body.card is not None:
            _check_card(body.card, share, choose_card)
        wanted = burst if body.burst is None else body.burst
        wish = Wish(body.wait, body.kind, body.run_seconds, waiting.due(body.deadline))
        found = sessions.start(
            body.user,
            body.server,
            share,
            actor="hub",
            card=body.card,
            burst=wanted,
            environment=body.environment,
            wish=wish,
        )
        if isinstance(found, Entry):
            place = waiting.shown(sessions.queue.outlook.place(found))
            return Response(
                queue_schemas.Waits(waiting=place).model_dump_json(), status_code=202, media_type="application/json"
            )
        row, launch, new = found
        response.status_code = 201 if new else 200
        return views.started(shown(row), launch)

    @router.get("/sessions/{session}", response_model=schemas.Session)
    def get_session(session: str, caller: Caller) -> Response:
        """One session."""
        return _written(shown(visible(caller, session)))

    @router.patch("/sessions/{session}", response_model=schemas.Resized)
    def resize(session: str, body: schemas.ResizeRequest, caller: Caller, request: Request) -> Response:
        """Change a running session's share, or its burst, or both. Refused whole with 409 when the share does not fit;
        nothing is changed then."""
        row = visible(caller, session, "resize")
        if not may(caller, "resize", row):
            if caller.may("resize", row.user, row.server):
                raise Forbidden("The policy gives you no right to resize this session.")
            raise NotAllowed("Your token lacks the scope custom:gpuspawner:resize for this session.")
        if "share" not in body.model_fields_set and body.burst is None:
            raise InvalidInput("share: missing.", field="share", given=None, allowed="a share, burst, or both")
        share = _share(body.share) if "share" in body.model_fields_set else None
        now = sessions.change(row.id, share, body.burst, actor=caller.name)
        applied = (time.perf_counter() - request.scope["gpuspawner.arrived"]) * 1000
        return _written(schemas.Resized(session=shown(now), applied_ms=round(applied, 3)))

    @router.put("/sessions/{session}/activity")
    def activity(session: str, body: schemas.Activity, caller: Caller) -> schemas.Idle:
        """Say how long nothing was done in a session: its own server, or the culler with what JupyterHub knows."""
        row = visible(caller, session, "activity")
        if not caller.may("activity", row.user, row.server):
            raise NotAllowed("Your token lacks the scope custom:gpuspawner:activity for this session.")
        by_server = not caller.may_everywhere("activity")
        seconds = sessions.idle.report(row.id, body.idle_seconds, by_server=by_server)
        return schemas.Idle(idle_seconds=seconds, due=sessions.idle.due(row.id))

    @router.delete("/sessions/{session}", response_model=schemas.Session | queue_schemas.Waiting)
    def end(session: str, caller: Caller, request: Request) -> schemas.Session | queue_schemas.Waiting:
        """End a session, its processes included. The hub and administrators only: users stop their server. One that
        waits leaves the queue; its user may say so too."""
        sessions.must_lead()
        entry = sessions.queue.entries.get(session)
        if (
            entry is not None
            and entry.state == "waiting"
            and sessions.book.may(caller, "read", entry.user, entry.server)
        ):
            if not (sessions.book.may(caller, "resize", entry.user, entry.server)):
                raise NotAllowed("Your token lacks the scope custom:gpuspawner:resize for this session.")
            request.scope["gpuspawner.user"] = entry.user  # for the audit
            place = waiting.shown(sessions.queue.outlook.place(entry))
            if sessions.queue.leave(session, f"Its place in the queue was given up by {caller.name}."):
                return place
        row = visible(caller, session)
        if not caller.may("admin", row.user, row.server):
            raise NotAllowed("Stop the server in JupyterHub to end its session.")
        why = "the server was stopped" if caller.hub else f"ended by {caller.name}"
        return shown(sessions.end(row.id, caller.name, why))

    @router.get("/events")
    def events(
        caller: Caller,
        session: Annotated[str | None, Query(max_length=32)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        before: Annotated[int | None, Query(ge=1, le=2**62, description="rows older than this one")] = None,
    ) -> schemas.Events:
        """Ledger rows, newest first: of one session, or for administrators of all."""
        if session is not None:
            visible(caller, session)
        elif not caller.may("admin"):
            raise NotAllowed("Name a session of yours: events?session=ID.")
        found = sessions.store.ledger(session, limit + 1, before)
        more = found[limit - 1].id if len(found) > limit else None
        return schemas.Events(events=[views.entry(row) for row in found[:limit]], next=more)

    @router.get("/processes")
    def processes(caller: Caller) -> schemas.Holders:
        """Every process that holds memory of a card, those of no session included. Administrators only."""
        if not caller.may("admin"):
            raise NotAllowed("Only administrators may see every process on the cards.")
        return views.holders(sessions.fleet)

    return router


def _written(answer: BaseModel) -> Response:
    """What is asked for often, as it is: else FastAPI copies it, and checks in another thread what was checked."""
    return Response(answer.model_dump_json(), media_type="application/json")


def _share(share: object, model: object = None) -> GPUShare:
    parsed = GPUShare.parse(share)
    if model is None:
        return parsed
    if type(model) is not str:
        raise InvalidInput("model: must be text.", field="model", given=model, allowed="a card model's name")
    if parsed.model not in (None, model):
        raise InvalidInput("model: the share names another model.", field="model", given=model, allowed=parsed.model)
    return GPUShare(parsed.eighths, model)


def _check_card(card: str, share: GPUShare, allowed: bool) -> None:
    if not allowed:
        raise InvalidInput("card: the exact card cannot be chosen here.", field="card", given=card, allowed="none")
    if share.cards != 1:
        raise InvalidInput("card: only a share of one card may name it.", field="card", given=card, allowed="none")


class Refusal(JSONResponse):
    """An error. Written in ASCII: it repeats what was given, and not all that JSON can hold has a UTF-8 form."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def _add_error_handlers(app: FastAPI) -> None:
    async def refused(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, GPUSpawnerError)
        return Refusal({"error": error.as_dict()}, error.status)

    async def not_stored(_request: Request, error: Exception) -> JSONResponse:
        log.error("records could not be read or written", exc_info=error)
        cause = str(getattr(error, "orig", None) or error)
        problem = Unavailable(f"The GPU service cannot reach its records now ({cause}).", code="storage")
        return Refusal({"error": problem.as_dict()}, problem.status)

    async def failed(_request: Request, _error: Exception) -> JSONResponse:
        # the server logs the exception itself
        body = {"code": "internal", "message": "The GPU service failed at this request; its log says why."}
        return Refusal({"error": body}, 500)

    async def malformed(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        # ("body", "share") -> share; for a body that is no JSON at all the place is a position in it.
        field = shorten(".".join(part for part in first["loc"][1:] if isinstance(part, str)) or "body")
        problem = InvalidInput(f"{field}: {first['msg']}.", field=field, given=shorten(first.get("input")))
        return Refusal({"error": problem.as_dict()}, problem.status)

    async def http(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        body = {"code": f"http_{error.status_code}", "message": f"{error.detail}.", "field": None}
        return Refusal({"error": body}, error.status_code, headers=error.headers)

    app.add_exception_handler(GPUSpawnerError, refused)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, http)
    for kind in (sqlite3.Error, SQLAlchemyError, OSError):
        app.add_exception_handler(kind, not_stored)
    app.add_exception_handler(Exception, failed)


class LimitBody:
    """Notes when a request arrived, and refuses bodies over MAX_BODY_BYTES with 413 before they are read whole."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its body, if it is small enough."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["gpuspawner.arrived"] = time.perf_counter()
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if len(body) > MAX_BODY_BYTES:
                too_large = InvalidInput(f"body: more than {MAX_BODY_BYTES} bytes.", code="too_large", field="body")
                await Refusal({"error": too_large.as_dict()}, 413)(scope, receive, send)
                return
            if not message.get("more_body"):
                break
        sent = False

        async def replay() -> dict[str, object]:
            nonlocal sent
            if sent:
                return dict(await receive())
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)
