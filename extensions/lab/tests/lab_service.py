"""A small HTTP server that speaks the hub service's REST API about one session on one card.

It keeps the rules of the real one: eight eighths, no shrink below what is in use, no change on refusal.
Also runs by hand, for looking at the extension: `python tests/lab_service.py PORT`.
"""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "a-token-for-tests"
CARD_BYTES = 80 * 2**30
PRICES = {"1/8": "0.63", "1/4": "1.00", "1/2": "1.60", "1": "2.50"}
EIGHTHS = {"1/8": 1, "1/4": 2, "1/2": 4, "1": 8}
CARD = {
    "uuid": "GPU-00000000-0000-0000-0000-000000000001",
    "index": 0,
    "name": "NVIDIA H100 80GB HBM3 (simulated)",
}

#: What is different in a session that was started with the share "none".
NO_CARD: dict[str, Any] = {
    "share": "none",
    "eighths": 0,
    "model": None,
    "cards": [],
    "memory_bytes": 0,
    "memory_used_bytes": 0,
    "price_per_hour": "0.00",
    "simulated": False,
    "resizable": False,
    "options": [],
    "free_eighths": None,
}


class Service:
    """The state behind the API; tests read and change it directly."""

    def __init__(self) -> None:
        self.share = "1/4"
        self.used = 3 * 2**30
        self.others = 2  # eighths of the card that other sessions hold
        self.burst = False
        self.without_card = False
        self.broken: int | None = None  # answer everything with this status
        self.gate = threading.Event()  # answers wait for it
        self.gate.set()
        self.requests: list[tuple[str, str, Any]] = []
        self.events: list[dict[str, Any]] = [self.event("start", "2026-01-01T00:00:00.000+00:00", "hub")]

    @staticmethod
    def memory(share: str) -> int:
        return CARD_BYTES * EIGHTHS[share] // 8

    def event(self, kind: str, at: str, actor: str) -> dict[str, Any]:
        return {
            "id": 1,
            "at": at,
            "session": "s1",
            "user": "ada",
            "server": "",
            "kind": kind,
            "model": "h100-80gb",
            "cards": [CARD["uuid"]],
            "eighths": EIGHTHS[self.share],
            "price_per_hour": PRICES[self.share],
            "currency": "EUR",
            "actor": actor,
            "reason": "",
        }

    def session(self) -> dict[str, Any]:
        return {**self._session(), **NO_CARD} if self.without_card else self._session()

    def _session(self) -> dict[str, Any]:
        options = []
        for share, eighths in EIGHTHS.items():
            fits = eighths <= 8 - self.others
            options.append(
                {
                    "share": share,
                    "memory_bytes": self.memory(share),
                    "price_per_hour": PRICES[share],
                    "available": fits,
                    "reason": None if fits else f"Others hold {self.others}/8 of this card.",
                    "current": share == self.share,
                }
            )
        return {
            "id": "s1",
            "user": "ada",
            "server": "",
            "state": "running",
            "share": self.share,
            "eighths": EIGHTHS[self.share],
            "model": "h100-80gb",
            "cards": [CARD],
            "memory_bytes": self.memory(self.share),
            "memory_used_bytes": self.used,
            "price_per_hour": PRICES[self.share],
            "currency": "EUR",
            "grade": "guarded",
            "simulated": True,
            "created": "2026-01-01T00:00:00.000+00:00",
            "resizable": True,
            "options": options,
            "free_eighths": 8 - self.others - EIGHTHS[self.share],
            "burst": self.burst,
        }

    def resize(self, body: Any) -> tuple[int, dict[str, Any]]:
        if isinstance(body, dict) and isinstance(body.get("burst"), bool):
            self.burst = body["burst"]
            return 200, {"session": self.session(), "applied_ms": 1.0}
        share = body.get("share") if isinstance(body, dict) else None
        if share not in EIGHTHS:
            return self.error(422, "invalid", "share is not one of 1/8, 1/4, 1/2, 1.", field="share", given=share)
        if EIGHTHS[share] > 8 - self.others:
            return self.error(409, "no_room", f"Others hold {self.others}/8 of this card.", field="share")
        excess = self.used - self.memory(share)
        if excess > 0:
            message = f"Free {excess / 2**30:.1f} GiB first. Nothing was changed."
            return self.error(409, "in_use", message, field="share", need_to_free_bytes=excess)
        self.share = share
        self.events.insert(0, self.event("resize", datetime.now(UTC).isoformat(timespec="milliseconds"), "ada"))
        return 200, {"session": self.session(), "applied_ms": 3.2}

    @staticmethod
    def error(status: int, code: str, message: str, field: str | None = None, **more: Any) -> tuple[int, Any]:
        error = {"code": code, "message": message, "field": field, "given": None, "allowed": None, **more}
        return status, {"error": error}

    def answer(self, method: str, path: str, token: str | None, body: Any) -> tuple[int, Any]:
        self.requests.append((method, path, body))
        self.gate.wait(60)
        if self.broken is not None:
            return self.broken, {"oops": "a proxy's page"}
        if token != f"Bearer {TOKEN}":
            return self.error(401, "unauthorized", "The token is not known to the hub.")
        if path == "/api/v1/offers" and method == "GET":
            offer = {"share": "1/8", "model": "h100-80gb", "available": True}
            return 200, {"simulated": True, "grade": "guarded", "currency": "EUR", "offers": [offer]}
        if path == "/api/v1/events?session=s1&limit=1000":
            return 200, {"events": self.events}
        if path != "/api/v1/sessions/s1":
            return self.error(404, "not_found", "There is no such session.")
        return self.resize(body) if method == "PATCH" else (200, self.session())


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that did not wait for its answer is no fault; anything else is printed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class ServiceServer:
    """Serves a `Service` on a free port of the loopback until `stop`."""

    def __init__(self, service: Service, port: int = 0) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _reply(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                status, answer = service.answer(self.command, self.path, self.headers.get("Authorization"), body)
                raw = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_PATCH = _reply

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = _Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/api/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


if __name__ == "__main__":
    ServiceServer(Service(), int(sys.argv[1]))._thread.join()
