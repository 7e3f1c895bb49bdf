"""Asks the service for the session that a server is to run in."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from gpuspawner.share import GPUShare
from gpuspawner.spawner.client import Json, ServiceClient
from gpuspawner.spawner.errors import Refused
from gpuspawner.spawner.options import Choice
from gpuspawner.spawner.steps import Steps
from gpuspawner.spawner.words import model_words, place_words, size_words

log = logging.getLogger(__name__)

T = TypeVar("T")
# longer than a session takes to end when its server is killed
_PREVIOUS_ENDS_WITHIN = 15.0
#: Seconds between two questions about a place in the queue: near its head, and further back.
_POLL, _POLL_FAR, _NEAR = 1.0, 5.0, 20


async def obtain_session(
    service: ServiceClient,
    user: str,
    server: str,
    wanted: Choice,
    default_share: str,
    steps: Steps,
    environment: str | None = None,
    longest_wait: float = 0,
) -> tuple[Json, Json]:
    """The session for a user's server and how to launch it. `default_share`: for a choice that names none.
    `environment`: the one that is going to run, by name. `longest_wait`: seconds in the queue, for who wishes to wait.

    A cancellation waits for the service's answer, so that what it made can be undone, and for nothing else. Raises
    Refused, with what was asked for where that is not free.
    """
    waits = bool(wanted.wait) and longest_wait > 0
    share = wanted.share or await _default_choice(service, user, default_share, taken=waits)
    asked = size_words(share) + (f" ({model_words(share.model)})" if share.model else "")
    steps.take("place", 10, f"Asked for {asked}.")
    more: dict[str, Any] = {"burst": wanted.burst, "card": wanted.card, "environment": environment}
    more |= {"wait": waits or None, "kind": wanted.kind, "run_seconds": wanted.run_seconds, "deadline": wanted.to_come}
    began = time.monotonic()
    try:
        while True:
            session, launch = await to_the_end(service.start(user, server, share.amount, share.model, **more))
            if launch is not None:
                break
            await _until_placed(service, session, steps, asked, began + longest_wait)
    except Refused as refused:
        if refused.code != "no_room":
            raise
        size = asked[:1].upper() + asked[1:]
        message = f"{size} cannot be started now. {refused.jupyterhub_message}"
        raise Refused(409, message, code="no_room") from refused
    if session["state"] != "starting":
        # a server of which this hub knows nothing runs in that session: it was killed between
        # launching and remembering. Two servers must not share one session.
        log.warning("Ending a server %s/%s that this hub does not know", user, server)
        steps.take("place", 15, "A server left from before is being ended first.")
        await to_the_end(service.end_all(user, server, wait=_PREVIOUS_ENDS_WITHIN))
        more["wait"] = None
        session, launch = await to_the_end(service.start(user, server, share.amount, share.model, **more))
        assert launch is not None
    return session, launch


async def _until_placed(service: ServiceClient, place: Json, steps: Steps, asked: str, until: float) -> None:
    """Wait until somebody in the queue has its share, and tell where it stands. Raises Refused where it waits no more,
    or not by `until` (of the monotonic clock)."""
    while place["state"] == "waiting":
        steps.take("place", 10, place_words(place), waiting=True)
        if time.monotonic() >= until:
            raise Refused(409, f"{asked[:1].upper()}{asked[1:]} did not become free in time.", code="no_room")
        await asyncio.sleep(_POLL if (place.get("place") or 1) <= _NEAR else _POLL_FAR)
        try:
            place = await to_the_end(service.place(place["id"]))
        except Refused as refused:
            if refused.status_code == 404:
                raise Refused(409, refused.jupyterhub_message, code="left_queue") from refused
            # the place is kept by the service's database
            steps.take("place", 10, f"{refused.jupyterhub_message} Your place in the queue is kept.", waiting=True)


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. A cancellation waits until it has ended, so that what it made can be undone."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved: the cancellation is what the caller hears of
        raise


async def _default_choice(service: ServiceClient, user: str, default_share: str, *, taken: bool) -> GPUShare:
    """The default share if it is free, else the first that is. Raises Refused (409) if nothing is, unless `taken` ones
    will do."""
    offers = (await service.offers(user))["offers"]
    wanted = GPUShare.parse(default_share)
    free = [offer for offer in offers if offer["available"]]
    for offer in free:
        if offer["share"] == wanted.amount and wanted.model in (None, offer["model"]):
            return wanted
    refused = next((offer["reason"] for offer in offers if not offer.get("allowed", True)), None)
    if refused and not any(offer.get("allowed", True) for offer in offers):
        raise Refused(403, refused, code="policy")
    if not free and taken:
        return wanted
    if not free:
        raise Refused(409, "Nothing is free at the moment: every share of every card is in use.", code="no_room")
    return GPUShare.parse(f"{free[0]['model']}:{free[0]['share']}")
