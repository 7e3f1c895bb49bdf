"""Keeps a copy of a kind of objects up to date: a list, then a watch, and again where that breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gpuspawner.fleet.objects import Object
from gpuspawner.kubernetes_api import ApiError, Backoff, KubeApi

log = logging.getLogger(__name__)

#: The server ends a watch after so many seconds, and it is begun again from where it was.
WATCH_SECONDS = 240
#: The server sends a bookmark about once a minute; a watch that is silent for longer has lost its connection.
SILENCE_SECONDS = 150.0
_PAGE = "500"
#: The version that is asked for is not kept any more.
_GONE = 410


class Mirror:
    """The objects at `path`. `changed` hears of each one that is new or otherwise ("namespace/name", or the name alone
    where there is no namespace), with None where it is gone. It is called in the event loop and may not block.
    """

    def __init__(
        self,
        api: KubeApi,
        path: str,
        changed: Callable[[str, Object | None], None],
        **query: str,
    ) -> None:
        self._api = api
        self._path = path
        self._tell = changed
        self._query = query
        self._versions: dict[str, str] = {}
        #: set once everything has been listed
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """For ever. Too many requests, a slow server and lost connections only make it later."""
        backoff = Backoff()
        version: str | None = None
        while True:
            try:
                if version is None:
                    version = await self._list()
                    self.synced.set()
                version = await self._watch(version, backoff)
            except ApiError as error:
                if error.answered == _GONE:
                    version = None
                log.warning("%s is looked at again: %s", self._path, error)
                await backoff.wait()

    async def _list(self) -> str:
        found: dict[str, Object] = {}
        query = {**self._query, "limit": _PAGE}
        while True:
            page = await self._api.get(self._path, **query)
            found.update((key_of(each), each) for each in page["items"])
            more = page["metadata"].get("continue")
            if not more:
                break
            query["continue"] = more
        for gone in self._versions.keys() - found.keys():
            self._forget(gone)
        for key, each in found.items():
            self._see(key, each)
        version: str = page["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str, backoff: Backoff) -> str:
        """The version up to which all is known, when the server has ended the watch or the connection is lost."""
        query = {**self._query, "timeoutSeconds": str(WATCH_SECONDS)}
        events = self._api.watch(self._path, version, **query)
        try:
            while True:
                try:
                    async with asyncio.timeout(SILENCE_SECONDS):
                        kind, found = await anext(events)
                except StopAsyncIteration:
                    return version
                except TimeoutError:
                    log.warning("a watch of %s was silent for %s s and is begun again", self._path, SILENCE_SECONDS)
                    return version
                except ApiError as error:
                    if error.answered == _GONE:
                        raise
                    log.warning("a watch of %s broke: %s", self._path, error)
                    await backoff.wait()
                    return version
                backoff.reset()
                version = found["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    self._forget(key_of(found))
                elif kind != "BOOKMARK":
                    self._see(key_of(found), found)
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    def _see(self, key: str, found: Object) -> None:
        version = found["metadata"]["resourceVersion"]
        if self._versions.get(key) != version:
            self._versions[key] = version
            self._told(key, found)

    def _forget(self, key: str) -> None:
        self._versions.pop(key, None)
        self._told(key, None)

    def _told(self, key: str, found: Object | None) -> None:
        try:
            self._tell(key, found)
        except Exception:  # one object that nobody understands must not stop the others
            log.exception("%s %s could not be understood", self._path, key)


def key_of(found: Object) -> str:
    """An object's name, with its namespace where it has one."""
    meta = found["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])
