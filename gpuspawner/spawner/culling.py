"""What jupyterhub-idle-culler asks before it stops a server: the service, which knows what its session does."""

from __future__ import annotations

import functools
import logging
import os
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx

from gpuspawner.state import Settings

log = logging.getLogger(__name__)


async def may_be_culled(*, inactive: timedelta | None, inactive_limit: float, server: dict[str, Any], **_: Any) -> bool:
    """Whether a server may be stopped now (`cull_arbiter_hook`).

    For a server with a session the service says so, and is told `inactive`, JupyterHub's own figure. For one
    without, that figure alone decides. No answer is no.
    """
    user, _, name = server["full_name"].partition("/")
    seconds = None if inactive is None else max(0.0, inactive.total_seconds())
    try:
        asked = {"user": user, "server": name}
        live = [row for row in (await _ask("GET", "/sessions", params=asked))["sessions"] if row["state"] != "ending"]
        if not live:
            return seconds is not None and seconds >= inactive_limit
        answers = [
            await _ask("PUT", f"/sessions/{quote(row['id'], safe='')}/activity", json={"idle_seconds": seconds or 0.0})
            for row in live
        ]
        return all(answer["due"] is True for answer in answers)
    except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
        log.warning(
            "The GPU service did not say whether %s is idle, so it is not culled: %s", server["full_name"], error
        )
        return False


async def _ask(method: str, path: str, **options: Any) -> Any:
    headers = {"Authorization": f"Bearer {os.environ['JUPYTERHUB_API_TOKEN']}"}
    url, socket = os.environ.get("GPUSPAWNER_SERVICE_URL"), None
    if not url:  # on one machine
        url, socket = _settings().service_api, str(_settings().service_socket)
    transport = httpx.AsyncHTTPTransport(uds=socket, trust_env=False)
    async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=20.0) as client:
        answer = await client.request(method, url + path, headers=headers, **options)
        return answer.raise_for_status().json()


@functools.cache
def _settings() -> Settings:
    return Settings.from_env()
