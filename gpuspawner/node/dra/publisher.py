"""Keeps a node's ResourceSlice at what it should be: the only writer of it.

A content is computed when it is sent, under one lock, so that no older one can overtake a newer. Whoever else changes
or deletes the slice (a kubelet deletes it when it starts, and half a minute after the plugin was away) sees it
corrected.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

from gpuspawner import kubernetes_names as names
from gpuspawner.kubernetes_api import ApiError, Backoff, KubeApi, Object
from gpuspawner.node.dra.published import slice_name

log = logging.getLogger(__name__)
PATH = "/apis/resource.k8s.io/v1/resourceslices"


class Publisher:
    """`content` says what the slice should be now; it is asked with no lock of ours held."""

    def __init__(self, api: KubeApi, node: str, content: Callable[[], dict[str, Any]]) -> None:
        self._api = api
        self._node = node
        self._content = content
        self._lock = asyncio.Lock()
        # The first content of a start has to be another one than any before. A PUT of the last life may still be under
        # way, and the server takes it unless the version has changed, which it does only with the content.
        self._start = {names.STARTED: secrets.token_hex(8)}
        self._seen: Object | None = None  # the slice as the server last had it, as far as we know
        self._sent: tuple[dict[str, Any], int] | None = None  # the content that we sent, and the version it became
        self._selector = f"spec.driver={names.DRIVER},spec.nodeName={node}"

    async def publish(self) -> None:
        """Bring the slice to what it should be and return once the server has it. Tries until it succeeds."""
        backoff = Backoff()
        while True:
            try:
                async with self._lock:
                    await self._put()
                return
            except ApiError as error:
                log.warning("the slice of node %s could not be published: %s", self._node, error)
                self._seen = None
                await backoff.wait()

    async def keep(self) -> None:
        """Watch the slice and correct it, for ever."""
        backoff = Backoff()
        while True:
            try:
                found = await self._api.get(PATH, fieldSelector=self._selector)
                await self._remove_strays(found["items"])
                own = [each for each in found["items"] if each["metadata"]["name"] == slice_name(self._node)]
                self._seen = own[0] if own else None
                await self.publish()
                backoff.reset()
                version = found["metadata"]["resourceVersion"]
                async for kind, changed in self._api.watch(PATH, version, fieldSelector=self._selector):
                    await self._changed(kind, changed)
            except ApiError as error:
                if error.answered != 410:
                    log.warning("the slice of node %s is not watched: %s", self._node, error)
                await backoff.wait()

    async def withdraw(self) -> None:
        """Take the slice away: nothing of this node is offered any more."""
        async with self._lock:
            await self._api.delete(f"{PATH}/{slice_name(self._node)}")
            self._seen = None

    async def _put(self) -> None:
        wanted = self._wanted()
        if self._seen is not None and self._sent == (wanted["spec"], _version(self._seen)):
            return
        path = f"{PATH}/{slice_name(self._node)}"
        for _ in range(5):
            if self._seen is None:
                self._seen = await self._api.find(path)
            try:
                if self._seen is None:
                    self._keep(wanted, await self._api.create(PATH, wanted))
                    return
                version = {"resourceVersion": self._seen["metadata"]["resourceVersion"]}
                content = {**wanted, "metadata": {**wanted["metadata"], **version}}
                self._keep(wanted, await self._api.replace(path, content))
                return
            except ApiError as error:
                if error.answered not in (404, 409):
                    raise
                self._seen = None  # somebody else was there
                wanted = self._wanted()
        raise ApiError("it is changed by somebody else all the time", 409)

    def _wanted(self) -> dict[str, Any]:
        wanted = self._content()
        return {**wanted, "metadata": {**wanted["metadata"], "annotations": self._start}}

    def _keep(self, sent: dict[str, Any], answer: Object) -> None:
        # The server adds to what it was sent, so that only its version says whether it is still that.
        self._seen, self._sent = answer, (sent["spec"], _version(answer))

    async def _changed(self, kind: str, changed: Object) -> None:
        if kind == "BOOKMARK":
            return
        if changed["metadata"]["name"] != slice_name(self._node):
            if kind != "DELETED":
                await self._remove_strays([changed])
            return
        async with self._lock:
            seen = self._seen
            if kind == "DELETED":
                # An older one's end is no news about the one that was created since.
                if seen is not None and seen["metadata"]["uid"] == changed["metadata"]["uid"]:
                    self._seen = None
            elif seen is None or _version(changed) > _version(seen):
                self._seen = changed
        await self.publish()

    async def _remove_strays(self, found: list[Object]) -> None:
        """Nobody else offers this node's cards."""
        for each in found:
            if each["metadata"]["name"] != slice_name(self._node):
                log.warning("the slice %s of another is removed", each["metadata"]["name"])
                await self._api.delete(f"{PATH}/{each['metadata']['name']}")


def _version(content: Object) -> int:
    """Kubernetes 1.35 and later promise that versions of one kind can be compared as numbers."""
    return int(content["metadata"]["resourceVersion"])
