"""What stands before every route: the rate limit, idempotency keys, the audit, the counts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import math
import re
import time
from typing import Any
from urllib.parse import unquote
from weakref import WeakValueDictionary

from fastapi.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuspawner.errors import GPUSpawnerError, InvalidInput, shorten
from gpuspawner.service.requests.metrics import Metrics
from gpuspawner.service.requests.rate import RateLimit
from gpuspawner.service.requests.records import Records

log = logging.getLogger(__name__)

_CHANGES = ("POST", "PATCH", "DELETE", "PUT")
_KEY = re.compile(rb"[!-~]{8,200}\Z")
_LOOPBACK = ("127.0.0.1", "::1", "testclient")
_ASKED = 500


class TooMany(GPUSpawnerError):
    """Too many requests (429)."""

    code = "rate_limit"
    status = 429


class Desk:
    """ASGI middleware. It comes after the body's limit, so that bodies are small and whole. `own_token`: the hub's,
    which is not limited; nor is who has none, and is told so at once."""

    def __init__(
        self, app: ASGIApp, records: Records | None, rate: RateLimit, metrics: Metrics, prefix: str, own_token: bytes
    ) -> None:
        self._app = app
        self._records = records
        self._rate = rate
        self._metrics = metrics
        self._prefix = prefix
        self._own = own_token
        # two requests with one key wait for each other
        self._keys: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        token = headers.get(b"authorization", b"").partition(b" ")[2].strip()
        if token and not (self._own and hmac.compare_digest(token, self._own)):
            wait = self._rate.wait(token)
            if wait:
                await _refuse(send, TooMany("Too many requests by this token."), math.ceil(wait))
                self._metrics.count(scope, 429, 0.0)
                return
        message = await receive()
        body: bytes = message.get("body", b"")
        heard = _Heard(send)

        async def replay() -> Message:
            nonlocal message
            given, message = message, {"type": ""}
            return given if given["type"] else await receive()

        begin = time.perf_counter()
        try:
            await self._once(scope, headers, token, body, replay, heard)
        finally:
            self._metrics.count(scope, heard.status or 500, time.perf_counter() - begin)
            await self._note(scope, headers, body, heard.status or 500)

    async def _once(
        self, scope: Scope, headers: dict[bytes, bytes], token: bytes, body: bytes, receive: Receive, heard: _Heard
    ) -> None:
        """Answer a request; one with a key that was answered before, as it was then."""
        given = headers.get(b"idempotency-key")
        starts = scope["method"] == "POST" and scope["path"].endswith("/sessions")  # which says how to launch
        if given is None or scope["method"] not in _CHANGES or starts or self._records is None:
            await self._app(scope, receive, heard)
            return
        if not _KEY.match(given):
            error = InvalidInput(
                "Idempotency-Key: 8 to 200 printable characters without spaces.", field="Idempotency-Key"
            )
            await _refuse(heard, error)
            return
        key = hashlib.sha256(token + b"\0" + given).hexdigest()
        what = f"{scope['method']} {scope['path']}\0".encode() + body
        fingerprint = hashlib.sha256(what).hexdigest()
        async with self._keys.setdefault(key, asyncio.Lock()):
            await self._answer_once(scope, receive, heard, key, fingerprint)

    async def _answer_once(self, scope: Scope, receive: Receive, heard: _Heard, key: str, fingerprint: str) -> None:
        assert self._records is not None
        kept = await run_in_threadpool(self._records.reply, key)
        if kept is not None and kept[0] != fingerprint:
            message = "Idempotency-Key: was used for another request."
            await _refuse(heard, InvalidInput(message, code="idempotency", field="Idempotency-Key"))
            return
        if kept is not None:
            extra = [(b"idempotency-replayed", b"true")]
            await _answer(heard, kept[1], kept[2].encode(), extra)
            return
        held: list[Message] = []
        answer = _Heard(_into(held), keep=True)
        await self._app(scope, receive, answer)
        # kept before it is sent: who has the answer and asks again gets the same one
        if answer.status and answer.status < 500 and answer.status not in (401, 429):
            await run_in_threadpool(self._records.keep, key, fingerprint, answer.status, answer.body.decode())
        for message_held in held:
            await heard(message_held)

    async def _note(self, scope: Scope, headers: dict[bytes, bytes], body: bytes, status: int) -> None:
        """Write a change, or an attempt at one, into the audit."""
        principal = scope.get("gpuspawner.principal")
        path = scope["path"].removeprefix(self._prefix)
        if self._records is None or principal is None or scope["method"] not in _CHANGES or path.endswith("/activity"):
            return
        asked = _object(body)
        session = path.split("/")[2] if path.startswith(("/sessions/", "/queue/")) else ""
        route = scope["route"].path.removeprefix(self._prefix) if "route" in scope else path
        entry = {
            "actor": principal.name,
            "action": f"{scope['method']} {route}",
            "user": str(scope.get("gpuspawner.user") or asked.get("user") or "")[:255],
            "session": unquote(session)[:32],
            "asked": json.dumps({str(name): shorten(value) for name, value in list(asked.items())[:20]})[:_ASKED],
            "why": (_words(headers.get(b"x-gpuspawner-reason", b"")) or str(asked.get("reason") or ""))[:255],
            "source": _source(scope, headers),
            "status": status,
        }
        try:
            await run_in_threadpool(self._records.note, {**entry, "action": entry["action"][:255]})
        except Exception:
            log.exception("the audit could not be written: %s", entry)


def _into(held: list[Message]) -> Send:
    async def send(message: Message) -> None:
        held.append(message)

    return send


class _Heard:
    """Passes an answer on, and remembers its status, and with `keep` all of it."""

    def __init__(self, send: Send, keep: bool = False) -> None:
        self._send = send
        self._keep = keep
        self.status = 0
        self.body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self._keep and len(self.body) < 1 << 20:
            self.body += message.get("body", b"")
        await self._send(message)


def _words(header: bytes) -> str:
    """A header's text; after `UTF-8''` in percent-encoding, since headers themselves are not for all languages."""
    text = header.decode("latin-1")
    return unquote(text[7:]) if text.startswith("UTF-8''") else text


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _source(scope: Scope, headers: dict[bytes, bytes]) -> str:
    """The address that the request came from. What a proxy on this machine says is believed of its own neighbour only:
    the last entry; those before it are whatever the client wrote."""
    peer = (scope.get("client") or ("",))[0] or "socket"
    if peer in (*_LOOPBACK, "socket"):
        last = headers.get(b"x-forwarded-for", b"").decode("latin-1").rpartition(",")[2].strip()
        return f"{last} by proxy"[:255] if last else peer
    return str(peer)[:255]


async def _refuse(send: Send, error: GPUSpawnerError, wait: int | None = None) -> None:
    extra = [] if wait is None else [(b"retry-after", str(wait).encode())]
    await _answer(send, error.status, json.dumps({"error": error.as_dict()}).encode(), extra)


async def _answer(send: Send, status: int, body: bytes, extra: list[tuple[bytes, bytes]]) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
