"""Follows all claims by a watch, and has those looked at that are prepared on this node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from gpuspawner.kubernetes_api import ApiError, Backoff, KubeApi, Object
from gpuspawner.node.dra.acts import CLAIMS
from gpuspawner.node.dra.shares import Shares

log = logging.getLogger(__name__)
_TRY_AGAIN = 1.0


class Following:
    """The watch, and one task for each claim that is being looked at: a slow one holds up no other."""

    def __init__(self, api: KubeApi, shares: Shares) -> None:
        self._api = api
        self._shares = shares
        self._newest: dict[str, Object] = {}  # claims (by uid) that are to be looked at
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """For ever. A watch that ends or is too old begins anew with a list."""
        backoff = Backoff()
        while True:
            try:
                listed = await self._api.get(CLAIMS)
                self._compare(listed["items"])
                version = listed["metadata"]["resourceVersion"]
                async for kind, claim in self._api.watch(CLAIMS, version):
                    backoff.reset()
                    if kind == "DELETED":
                        claim["status"] = {}
                    if kind != "BOOKMARK":
                        self._look_at(claim)
            except ApiError as error:
                if error.answered != 410:
                    log.warning("claims are not watched: %s", error)
                await backoff.wait()

    async def close(self) -> None:
        """Look at nothing more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _compare(self, listed: Iterable[Object]) -> None:
        found = {claim["metadata"]["uid"]: claim for claim in listed}
        for claim in found.values():
            self._look_at(claim)
        for (namespace, name), prepared in self._shares.known().items():
            if prepared.uid not in found:
                gone = {"namespace": namespace, "name": name, "uid": prepared.uid}
                self._look_at({"metadata": gone, "status": {}})

    def _look_at(self, claim: Object) -> None:
        uid = claim["metadata"]["uid"]
        if not self._shares.knows(uid):
            return
        self._newest[uid] = claim
        if uid not in self._tasks:
            task = asyncio.create_task(self._work(uid))
            self._tasks[uid] = task
            task.add_done_callback(lambda _: self._tasks.pop(uid, None))

    async def _work(self, uid: str) -> None:
        while (claim := self._newest.pop(uid, None)) is not None:
            try:
                await self._shares.follow(claim)
            except ApiError as error:
                log.warning("claim %s is looked at again: %s", uid, error)
                await asyncio.sleep(_TRY_AGAIN)
                self._newest.setdefault(uid, claim)
            except Exception:
                log.exception("claim %s could not be looked at", uid)
