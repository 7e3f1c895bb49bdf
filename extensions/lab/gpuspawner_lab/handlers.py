"""Endpoints below `<base_url>gpuspawner/api/`, all authenticated, all JSON.

A refusal is `{"error": {"code", "message", "field", "given", "allowed", …}, "message": …}`.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from tornado import web

from .checkpoints import CheckpointError
from .service import ServiceError, ServiceUnavailable
from .shares import SESSION_SECONDS, SHARES, ShareInputError, check_share, eighths, shown
from .shrink_channel import ask_to_free

if TYPE_CHECKING:
    from .app import GPUSpawnerLab

LARGEST_BODY = 4096
LONGEST_WATCH = 60.0
LONGEST_VIEWER = 64


class InputError(Exception):
    """Something in the request is not right; says which field and what is allowed."""

    def __init__(self, status: int, message: str, field: str | None, given: Any, allowed: Any) -> None:
        self.status = status
        self.body = {"code": "invalid", "message": message, "field": field, "given": given, "allowed": allowed}
        super().__init__(message)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


class GPUHandler(ExtensionHandlerMixin, APIHandler):
    """What the endpoints have in common."""

    auth_resource = "gpuspawner"

    @property
    def gpu(self) -> GPUSpawnerLab:
        """The extension."""
        return cast("GPUSpawnerLab", self.extensionapp)

    def body(self, fields: tuple[str, ...]) -> dict[str, Any]:
        """The request's JSON object, with no other fields than these. Raises `InputError`."""
        raw = self.request.body
        if len(raw) > LARGEST_BODY:
            raise InputError(
                413,
                f"The request is {len(raw):,} bytes long; at most {LARGEST_BODY:,} are read.",
                "body",
                len(raw),
                LARGEST_BODY,
            )
        try:
            body = json.loads(raw or b"{}", parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise InputError(400, "The body is not valid JSON.", "body", None, "a JSON object") from error
        if not isinstance(body, dict):
            raise InputError(
                422, f"The body must be a JSON object, not {shown(body)}.", "body", shown(body), list(fields)
            )
        for name in body:
            if name not in fields:
                raise InputError(
                    422,
                    f"Unknown field {shown(name)}: allowed is {', '.join(fields)}.",
                    name[:40],
                    shown(body[name]),
                    list(fields),
                )
        return body

    def refuse(self, status: int, body: dict[str, Any], **more: Any) -> None:
        """Answer with an error."""
        self.set_status(status)
        self.finish(json.dumps({"error": body, "message": body["message"], **more}))

    async def answer_status(self, *, renewal: bool = False) -> None:
        """Answer with what is known of the session now; 503 with the last known if the service is down.

        `renewal`: with what the telemetry that goes on knows, without asking service and driver beside it.
        """
        app = self.gpu
        if not app.configured:
            self.finish(json.dumps({"configured": False, "session": None, "telemetry": None}))
            return
        failed: ServiceError | None = None
        try:
            # A service that was away is asked again by whoever comes.
            await app.view.get(max_age=SESSION_SECONDS if renewal and app.view.error is None else 0.5)
        except ServiceError as error:
            self.log_detail(error)
            failed = error
        telemetry = await (app.sampler.recent() if renewal else app.sampler.sample())
        watched = app.sampler.watchers.looking
        known = {"configured": True, "session": app.view.last, "telemetry": telemetry, "watched": watched}
        if "revision" in telemetry:
            known["detail"] = {"holders": app.detail.holders, "runs": app.detail.runs}
        if failed is None:
            self.finish(json.dumps(known))
        else:
            self.refuse(failed.status, failed.body, **known)

    def log_detail(self, error: ServiceError) -> None:
        """Leave a trace of why the service could not be asked, for whoever runs the hub."""
        if isinstance(error, ServiceUnavailable):
            self.log.warning("gpuspawner service: %s", error.detail)

    def need_session(self) -> bool:
        """Whether there is a session; answers 404 if not."""
        if self.gpu.configured:
            return True
        message = "This server was started without a GPU share."
        self.refuse(404, {"code": "no_session", "message": message, "field": None, "given": None, "allowed": None})
        return False


class StatusHandler(GPUHandler):
    """GET: the session and the newest telemetry."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the status."""
        await self.answer_status()


class WatchHandler(GPUHandler):
    """POST `{"seconds": 30, "viewer": "…", "detail": true}`: send telemetry events for so long; answers like status.

    0 seconds: this viewer has gone, and the answer is short.
    """

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Start, go on or stop sampling for a viewer."""
        try:
            body = self.body(("seconds", "viewer", "detail"))
            seconds, viewer, detail = _lease(body)
        except InputError as error:
            self.refuse(error.status, error.body)
            return
        renewal = self.gpu.configured and self.gpu.sampler.watch(seconds, viewer, detail)
        if seconds:
            await self.answer_status(renewal=renewal)
        else:
            self.finish(json.dumps({"configured": self.gpu.configured}))


def _lease(body: dict[str, Any]) -> tuple[float, str, bool]:
    seconds = body.get("seconds", 30)
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not (seconds == 0 or 1 <= seconds <= LONGEST_WATCH):  # NaN is neither
        allowed = f"0 or a number from 1 to {LONGEST_WATCH:.0f}"
        raise _invalid("seconds", seconds, allowed)
    viewer = body.get("viewer", "")
    if not isinstance(viewer, str) or len(viewer) > LONGEST_VIEWER:
        raise _invalid("viewer", viewer, f"text of at most {LONGEST_VIEWER} characters")
    detail = body.get("detail", False)
    if not isinstance(detail, bool):
        raise _invalid("detail", detail, "true or false")
    return seconds, viewer, detail


def _invalid(field: str, given: Any, allowed: Any) -> InputError:
    return InputError(422, f"{field} must be {allowed}, not {shown(given)}.", field, shown(given), allowed)


class OffersHandler(GPUHandler):
    """GET: what can be started on this hub now."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the service's offers."""
        if not self.need_session():
            return
        try:
            self.finish(json.dumps(await self.gpu.client.offers()))
        except ServiceError as error:
            self.log_detail(error)
            self.refuse(error.status, error.body)


class ShareHandler(GPUHandler):
    """PATCH `{"share": "1/2"}` or `{"burst": true}`: change what the session holds; kernels keep running."""

    @web.authenticated
    @authorized
    async def patch(self) -> None:
        """Check the request and pass it to the service."""
        try:
            wanted = _wanted(self.body(("share", "burst")))
        except InputError as error:
            self.refuse(error.status, error.body)
            return
        if not self.need_session():
            return
        try:
            notes = await self._free_caches(wanted.get("share"))
            answer = await self.gpu.client.change(wanted)
        except ServiceError as error:
            self.log_detail(error)
            self.refuse(error.status, error.body)
            return
        if isinstance(answer.get("session"), dict):
            self.gpu.view.learn(answer["session"])
        self.gpu.sampler.nudge()
        self.finish(json.dumps({**answer, "notes": notes}))

    async def _free_caches(self, share: str | None) -> list[str]:
        """Before a shrink, ask the kernels that hold memory to free what they can; lines about what failed."""
        if share is None:
            return []
        app = self.gpu
        before = await app.view.get(max_age=2.0)
        if eighths(share) >= int(before.get("eighths") or 0):
            return []
        await app.detail.update_holders(await app.sampler.pids())
        return await ask_to_free(app.detail.holding_kernels())


def _wanted(body: dict[str, Any]) -> dict[str, Any]:
    """The checked body of a change. Raises `InputError`."""
    if not body:
        raise InputError(422, "The field share is missing.", "share", None, list(SHARES))
    if "burst" in body and not isinstance(body["burst"], bool):
        raise _invalid("burst", body["burst"], "true or false")
    if "share" in body:
        try:
            check_share(body["share"])
        except ShareInputError as error:
            raise InputError(422, str(error), "share", error.given, list(SHARES)) from error
    return body


class CheckpointsHandler(GPUHandler):
    """GET: the runs and their checkpoints. POST `{"run", "checkpoint", "action"}`: ask to restore, pin or unpin."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the runs."""
        self.finish(json.dumps({"runs": await asyncio.to_thread(self.gpu.runs.runs)}))

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Leave a request for the program that made the checkpoint."""
        try:
            body = self.body(("run", "checkpoint", "action"))
            given = (body.get("run"), body.get("checkpoint"), body.get("action"))
            request = await asyncio.to_thread(self.gpu.runs.request, *given)
        except InputError as error:
            self.refuse(error.status, error.body)
            return
        except CheckpointError as error:
            self.refuse(
                error.status,
                {
                    "code": "not_found" if error.status == 404 else "invalid" if error.status == 422 else "conflict",
                    "message": str(error),
                    "field": error.field,
                    "given": error.given,
                    "allowed": error.allowed,
                },
            )
            return
        self.gpu.detail.forget_runs()
        self.gpu.sampler.nudge()
        self.set_status(202)
        self.finish(json.dumps({"request": request}))


HANDLERS = [
    (r"/gpuspawner/api/status", StatusHandler),
    (r"/gpuspawner/api/watch", WatchHandler),
    (r"/gpuspawner/api/offers", OffersHandler),
    (r"/gpuspawner/api/share", ShareHandler),
    (r"/gpuspawner/api/checkpoints", CheckpointsHandler),
]
