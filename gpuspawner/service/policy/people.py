"""Who somebody is: JupyterHub's groups and roles, asked of the hub."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol
from urllib.parse import quote

import httpx

from gpuspawner import tls
from gpuspawner.errors import Unavailable
from gpuspawner.service.policy.decide import Person

#: Seconds for which the hub's answer about a person is believed.
BELIEVED = 10.0
_MOST = 10_000


class Directory(Protocol):
    """Knows people."""

    def person(self, name: str) -> Person:
        """Somebody by name; somebody whom nobody knows has no groups. Raises Unavailable."""
        ...


class HubDirectory:
    """Asks the hub with the service's token, which needs read:users and read:roles:users. Thread-safe."""

    def __init__(self, hub_api: str, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._client = httpx.Client(
            base_url=hub_api,
            headers={"Authorization": f"Bearer {token}"},
            timeout=10,
            transport=httpx.HTTPTransport(verify=tls.context()),
        )
        self._known: dict[str, tuple[float, Person]] = {}
        self._lock = threading.Lock()

    def person(self, name: str) -> Person:
        """Somebody by name."""
        now = self._clock()
        with self._lock:
            known = self._known.get(name)
        if known is not None and now - known[0] < BELIEVED:
            return known[1]
        person = self._ask(name)
        with self._lock:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[name] = now, person
        return person

    def _ask(self, name: str) -> Person:
        try:
            answer = self._client.get(f"/users/{quote(name, safe='')}")
            if answer.status_code == 404:
                return Person(name)
            answer.raise_for_status()
            model = answer.json()
            return Person(name, frozenset(model.get("groups") or ()), frozenset(model.get("roles") or ()))
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable("JupyterHub does not say who you are, so the policy cannot be asked now.") from error
