"""Client of the hub's gpuspawner service, for the server extension (asynchronous)."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx

from .service_words import UNREACHABLE, refusal_sentence, server_sentence


class ServiceError(Exception):
    """The service said no, or nothing. `body` is an error object as the service writes them."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        self.status = status
        self.body = body
        super().__init__(body["message"])


class ServiceUnavailable(ServiceError):
    """The service cannot be reached or is not able to answer."""

    def __init__(self, detail: str = "", message: str = UNREACHABLE) -> None:
        self.detail = detail
        super().__init__(
            503,
            {"code": "service_unavailable", "message": message, "field": None, "given": None, "allowed": None},
        )


class ServiceClient:
    """Asks the service about one session. Raises `ServiceError`, nothing else, on any failure."""

    def __init__(self, url: str, token: str, session: str, timeout: float) -> None:
        self._session = quote(session, safe="")
        # No proxy settings from the environment: the token goes to the service and nowhere else.
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {token}"},
            timeout=timeout,
            trust_env=False,
        )

    async def session(self) -> dict[str, Any]:
        """The session as the service sees it now."""
        return await self._ask("GET", f"sessions/{self._session}")

    async def offers(self) -> dict[str, Any]:
        """What could be started now on this hub."""
        return await self._ask("GET", "offers")

    async def change(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Change the share or burst; returns `{"session": …, "applied_ms": …}`."""
        return await self._ask("PATCH", f"sessions/{self._session}", json=wanted)

    async def active(self, idle_seconds: float) -> dict[str, Any]:
        """Say for how long nothing was done in this server."""
        return await self._ask("PUT", f"sessions/{self._session}/activity", json={"idle_seconds": idle_seconds})

    async def answer(self, notice: str, saved: bool, said: str) -> dict[str, Any]:
        """Say that all is saved that a notice was about, or why not."""
        body = {"notice": notice, "outcome": "saved" if saved else "failed", "said": said}
        return await self._ask("PUT", f"sessions/{self._session}/parking", json=body)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            answer = await self._http.request(method, path, **options)
            body = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise ServiceUnavailable(f"{type(error).__name__}: {error}") from error
        if not isinstance(body, dict) or answer.is_redirect:
            raise ServiceUnavailable(f"{method} {path} was answered with status {answer.status_code}")
        if answer.status_code >= 500:
            # The service may be up and say what it cannot do, for instance that the driver is silent.
            raise ServiceUnavailable(
                f"{method} {path} was answered with status {answer.status_code}", server_sentence(body)
            )
        if answer.status_code >= 400:
            raise ServiceError(answer.status_code, _error(answer.status_code, body))
        return body


def _error(status: int, body: dict[str, Any]) -> dict[str, Any]:
    error = body.get("error")
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return error
    message = refusal_sentence(status)
    return {"code": "refused", "message": message, "field": None, "given": None, "allowed": None}
