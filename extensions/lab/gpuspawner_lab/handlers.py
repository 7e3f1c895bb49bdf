"""Endpoints below `<base_url>gpuspawner/api/`, all authenticated, all JSON.

A refusal is `{"error": {"code", "message", "field", "given", "allowed", …}, "message": …}`.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from tornado import web

from .service import ServiceError, ServiceUnavailable
from .shares import SHARES, ShareInputError, check_share, shown

if TYPE_CHECKING:
    from .app import GPUSpawnerLab

LARGEST_BODY = 4096
LONGEST_WATCH = 60.0


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

    async def answer_status(self) -> None:
        """Answer with what is known of the session now; 503 with the last known if the service is down."""
        app = self.gpu
        if not app.configured:
            self.finish(json.dumps({"configured": False, "session": None, "telemetry": None}))
            return
        known: dict[str, Any] = {"configured": True}
        try:
            known["session"] = await app.view.get(max_age=0.5)
            known["telemetry"] = await app.sampler.sample()
        except ServiceError as error:
            self.log_detail(error)
            known["session"] = app.view.last
            known["telemetry"] = await app.sampler.sample()
            self.refuse(error.status, error.body, **known)
            return
        self.finish(json.dumps(known))

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
    """POST `{"seconds": 30}`: send telemetry events for so long; answers like status."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Start or go on sampling."""
        try:
            seconds = self.body(("seconds",)).get("seconds", 30)
            number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
            if not number or not (math.isfinite(seconds) and 1 <= seconds <= LONGEST_WATCH):
                allowed = f"a number from 1 to {LONGEST_WATCH:.0f}"
                raise InputError(
                    422, f"seconds must be {allowed}, not {shown(seconds)}.", "seconds", shown(seconds), allowed
                )
        except InputError as error:
            self.refuse(error.status, error.body)
            return
        if self.gpu.configured:
            self.gpu.sampler.watch(seconds)
        await self.answer_status()


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
    """PATCH `{"share": "1/2"}`: resize; kernels keep running."""

    @web.authenticated
    @authorized
    async def patch(self) -> None:
        """Check the share and pass it to the service."""
        try:
            body = self.body(("share",))
            if "share" not in body:
                raise InputError(422, "The field share is missing.", "share", None, list(SHARES))
            share = check_share(body["share"])
        except InputError as error:
            self.refuse(error.status, error.body)
            return
        except ShareInputError as error:
            self.refuse(
                422,
                {
                    "code": "invalid",
                    "message": str(error),
                    "field": "share",
                    "given": error.given,
                    "allowed": list(SHARES),
                },
            )
            return
        if not self.need_session():
            return
        try:
            answer = await self.gpu.client.resize(share)
        except ServiceError as error:
            self.log_detail(error)
            self.refuse(error.status, error.body)
            return
        if isinstance(answer.get("session"), dict):
            self.gpu.view.learn(answer["session"])
        self.gpu.sampler.nudge()
        self.finish(json.dumps(answer))


HANDLERS = [
    (r"/gpuspawner/api/status", StatusHandler),
    (r"/gpuspawner/api/watch", WatchHandler),
    (r"/gpuspawner/api/offers", OffersHandler),
    (r"/gpuspawner/api/share", ShareHandler),
]
