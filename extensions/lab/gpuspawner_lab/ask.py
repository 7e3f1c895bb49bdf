"""Questions about this session to the hub's service, from inside a kernel. Blocking; standard library only."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

from .service_words import NO_SESSION, UNREACHABLE, refusal_sentence, server_sentence

#: Seconds to wait for the service.
TIMEOUT = 30.0
#: Bytes. A thousand ledger rows are less than half of a megabyte.
_LARGEST_ANSWER = 8 << 20
_UNREADABLE = "the GPU service gave an answer that cannot be read."


class Refusal(Exception):
    """Something that cannot be done; the message is one line for the person at the keyboard."""

    def __init__(self, message: str, body: dict[str, Any] | None = None) -> None:
        self.body = body or {}
        super().__init__(" ".join(message.split()))


def session_id() -> str | None:
    """The id of the session that this process runs in, or None."""
    return os.environ.get("GPUSPAWNER_SESSION") or None


def get_session(timeout: float = TIMEOUT) -> dict[str, Any]:
    """The session as the service sees it now. Raises `Refusal`."""
    return _session(_ask("GET", _session_path(), timeout=timeout))


def patch_session(**wanted: Any) -> dict[str, Any]:
    """Ask for a change; returns `{"session", "applied_ms"}`. Raises `Refusal`."""
    answer = _ask("PATCH", _session_path(), wanted)
    _session(answer.get("session"))
    return answer


def _session(answer: Any) -> dict[str, Any]:
    """What is a session as the service tells them. Raises `Refusal`."""
    if not isinstance(answer, dict) or not isinstance(answer.get("share"), str):
        raise Refusal(_UNREADABLE)
    return answer


def get_events(limit: int) -> list[dict[str, Any]]:
    """This session's ledger rows, newest first. Raises `Refusal`."""
    answer = _ask("GET", f"events?session={quote(_session_path().removeprefix('sessions/'))}&limit={limit}")
    rows = answer.get("events")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _session_path() -> str:
    session = session_id()
    if session is None or not os.environ.get("GPUSPAWNER_SERVICE_URL"):
        raise Refusal(NO_SESSION)
    return f"sessions/{quote(session, safe='')}"


def _ask(method: str, path: str, body: dict[str, Any] | None = None, timeout: float = TIMEOUT) -> dict[str, Any]:
    import http.client
    import json
    import urllib.error
    import urllib.request

    # Without the environment's proxies and without redirects: the token goes to the service only.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _no_redirect())
    try:
        request = urllib.request.Request(
            f"{os.environ.get('GPUSPAWNER_SERVICE_URL', '').rstrip('/')}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {os.environ.get('JUPYTERHUB_API_TOKEN', '')}",
                "Content-Type": "application/json",
            },
        )
        try:
            with opener.open(request, timeout=timeout) as answer:
                raw = answer.read(_LARGEST_ANSWER)
                if answer.length:
                    raise http.client.IncompleteRead(raw, answer.length)
        except urllib.error.HTTPError as error:
            raise _refusal(error.code, error.read(_LARGEST_ANSWER)) from None
        parsed = json.loads(raw)
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        raise Refusal(UNREACHABLE) from error  # whoever answers there is not the service
    if not isinstance(parsed, dict):
        raise Refusal(_UNREADABLE)
    return parsed


def _no_redirect() -> Any:
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """Leave the redirect to be reported as an error."""

    return NoRedirect()


def _refusal(status: int, raw: bytes) -> Refusal:
    import json

    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if status >= 500:
        return Refusal(server_sentence(body))
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return Refusal(error["message"], error)
    return Refusal(refusal_sentence(status))
