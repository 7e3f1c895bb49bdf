"""The grid's carbon intensity as it is now, asked of a service on the web that the policy file names."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from gpuspawner.service.policy.schema import MOST_GRAMS, GridSource

log = logging.getLogger(__name__)

#: The environment variable that names the file with the secret that the service on the web asks for.
TOKEN_FILE = "GPUSPAWNER_GRID_TOKEN_FILE"
#: Seconds that an answer may take, and bytes that it may have.
_PATIENCE, _LONGEST = 10.0, 1 << 16


class Unusable(Exception):
    """An answer without a figure in it, in words for the log."""


class LiveGrid:
    """Asks in a thread of its own, since whoever writes the ledger must not wait for the web. One caller at a time."""

    def __init__(self, source: Callable[[], GridSource | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._asked: GridSource | None = None
        self._next = 0.0
        self._thread: threading.Thread | None = None
        # the source that was asked, what it said, and when
        self._known: tuple[GridSource, int, float] | None = None
        self._problem: str | None = None

    def grams_per_kwh(self) -> tuple[int, str] | None:
        """Grams of carbon dioxide per kilowatt hour and where that is from, as `PriceList.grams_per_kwh`; None where
        no source is named, or none of its answers is young enough. Asks again where it is time; does not wait."""
        source, now = self._source(), self._clock()
        if source is None:
            self._asked = None
            return None
        if source != self._asked or now >= self._next:
            self._ask(source, now)
        known = self._known
        if known is None or known[0] != source or now - known[2] > source.hold_minutes * 60:
            return None
        return known[1], f"live, {source.source}"

    @property
    def asks(self) -> bool:
        """Whether an answer is waited for now."""
        return self._thread is not None and self._thread.is_alive()

    def _ask(self, source: GridSource, now: float) -> None:
        if self.asks:
            return
        self._asked, self._next = source, now + source.every_minutes * 60
        self._thread = threading.Thread(target=self._learn, args=(source,), name="grid", daemon=True)
        self._thread.start()

    def _learn(self, source: GridSource) -> None:
        try:
            self._known = (source, ask(source), self._clock())
            problem = None
        except (Unusable, httpx.HTTPError, httpx.InvalidURL) as error:
            problem = str(error) or type(error).__name__
        if problem != self._problem:
            said = f"{problem}; the figures of `grid` count until it answers" if problem else "it answers again"
            log.warning("grid_live, %s: %s", source.source, said)
        self._problem = problem


def ask(source: GridSource) -> int:
    """What the source says now, in g/kWh. Raises Unusable, or errors of httpx; none has the secret in its words."""
    headers = {"Accept": "application/json"}
    if source.token_header:
        headers[source.token_header] = _secret()
    body = b""
    # a redirect would carry the secret to whoever it names
    with httpx.stream("GET", source.url, headers=headers, timeout=_PATIENCE, follow_redirects=False) as answer:
        if answer.status_code != 200:
            raise Unusable(f"it answered {answer.status_code}")
        for part in answer.iter_bytes():
            body += part
            if len(body) > _LONGEST:
                raise Unusable(f"its answer is longer than {_LONGEST} bytes")
    return _figure(body, source.value)


def _secret() -> str:
    """Read each time: it may be changed while the service runs."""
    try:
        secret = Path(os.environ[TOKEN_FILE]).read_text(encoding="ascii").strip()
    except KeyError:
        raise Unusable(f"token_header needs the file that {TOKEN_FILE} names, which is not set") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"the file that {TOKEN_FILE} names cannot be read: {type(error).__name__}") from None
    if not re.fullmatch(r"[!-~]{1,4096}", secret, re.ASCII):
        raise Unusable(f"the file that {TOKEN_FILE} names must hold the secret alone, in printable characters")
    return secret


def _figure(body: bytes, path: str) -> int:
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Unusable("its answer is no JSON") from error
    for name in path.split("."):
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise Unusable(f"value: there is no {path} in its answer")
    a_number = isinstance(found, int | float) and not isinstance(found, bool)
    if not a_number or not 0 <= found <= MOST_GRAMS:  # which NaN is not either
        raise Unusable(f"value: {path} is not a number from 0 to {MOST_GRAMS}: {str(found)[:80]!r}")
    return int(found + 0.5)
