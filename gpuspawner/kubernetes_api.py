"""The API server as the node uses it: plain objects by path, over kubernetes-asyncio's connection and sign-in."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration

from gpuspawner.errors import Unavailable

log = logging.getLogger(__name__)
Object = dict[str, Any]

#: Seconds for one answer. A watch lives longer; the server ends it after a few minutes.
TIMEOUT = 30.0
_WATCH = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=600)
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


class ApiError(Unavailable):
    """The API server refused, with the HTTP status `answered`, or did not answer (0). Users are told 503 for all."""

    code = "kubernetes"

    def __init__(self, message: str, answered: int = 0) -> None:
        super().__init__(message)
        self.answered = answered


class KubeApi:
    """One connection pool. Every method raises ApiError."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> KubeApi:
        """With a kubeconfig, or else as the pod's service account. Raises ApiError."""
        settings = Configuration()
        try:
            if kubeconfig:
                await config.load_kube_config(config_file=kubeconfig, client_configuration=settings)
            else:
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            raise ApiError(f"How to reach the API server is not known: {error}") from error
        return cls(ApiClient(settings))

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def get(self, path: str, **query: str) -> Object:
        """An object or a list. Without a resourceVersion the answer is as new as the store itself (a quorum read)."""
        return await self._ask("GET", path, query)

    async def find(self, path: str) -> Object | None:
        """An object, None where it is not there."""
        try:
            return await self._ask("GET", path)
        except ApiError as error:
            if error.answered == 404:
                return None
            raise

    async def create(self, path: str, content: Mapping[str, Any]) -> Object:
        """A new object."""
        return await self._ask("POST", path, body=content)

    async def replace(self, path: str, content: Mapping[str, Any]) -> Object:
        """An object as a whole; with a resourceVersion only if nobody has changed it since."""
        return await self._ask("PUT", path, body=content)

    async def apply(self, path: str, content: Mapping[str, Any], manager: str) -> Object:
        """What `manager` says of an object; the rest of it stays as it is."""
        return await self._ask("PATCH", path, {"fieldManager": manager, "force": "true"}, content, APPLY)

    async def merge(self, path: str, change: Mapping[str, Any]) -> Object:
        """Some fields of an object."""
        return await self._ask("PATCH", path, body=change, kind=MERGE)

    async def delete(self, path: str, uid: str | None = None) -> None:
        """An object; with a uid only that one, whatever is called so by now. One that is not there is no error."""
        try:
            await self._ask("DELETE", path, body={"preconditions": {"uid": uid}} if uid else None)
        except ApiError as error:
            if error.answered != 404 and not (uid and error.answered == 409):
                raise

    async def watch(self, path: str, version: str, **query: str) -> AsyncIterator[tuple[str, Object]]:
        """Changes after `version`, each with its type, until the server ends the watch. A version that is too old ends
        in an ApiError of status 410."""
        params = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version, **query}
        answer = await self._send("GET", path, params, None, None, _WATCH)
        try:
            async for line in _lines(answer):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(str(status.get("message")), int(status.get("code") or 0))
                yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ApiError(f"A watch of the API server broke: {error!r}") from error
        finally:
            answer.close()

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str | None = None,
    ) -> Object:
        answer = await self._send(method, path, query, body, kind, aiohttp.ClientTimeout(total=TIMEOUT))
        try:
            content: Object = json.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ApiError(f"The API server's answer could not be read: {error!r}") from error
        return content

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        kind: str | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Content-Type": kind or "application/json"}
        try:
            answer: aiohttp.ClientResponse = await self._client.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=limits,
            )
            if answer.status < 400:
                return answer
            text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(f"The API server does not answer: {error!r}") from error
        raise ApiError(f"The API server answered {answer.status}: {_message(text)}", answer.status)


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return text[:500]


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length: aiohttp's own reader refuses those over 64 KiB, and a slice may be longer."""
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


class Backoff:
    """How long to wait after one failure more: from a tenth of a second, doubled, to ten seconds."""

    def __init__(self, first: float = 0.1, longest: float = 10.0) -> None:
        self._first, self._longest, self._next = first, longest, first

    async def wait(self) -> None:
        """Wait that long."""
        await asyncio.sleep(self._next)
        self._next = min(self._next * 2, self._longest)

    def reset(self) -> None:
        """It works again."""
        self._next = self._first
