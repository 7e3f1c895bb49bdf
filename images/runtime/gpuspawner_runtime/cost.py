"""What a stretch of time has cost this session: from the hub's ledger, by its own address and token.

A session of gpuspawner has GPUSPAWNER_SERVICE_URL, GPUSPAWNER_SESSION and JUPYTERHUB_API_TOKEN in its environment.
Elsewhere, and where the service does not answer, cost is None. Money is counted in integer millionths.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any
from urllib.parse import quote

TIMEOUT = 5.0
MOST_ROWS = 1000
_LARGEST = 8 << 20
_MICROS = 1_000_000
_HOUR = 3600 * _MICROS


@dataclass(frozen=True)
class Cost:
    """Money in millionths of `currency`, and card-hours: eighths times time, exactly. The method says from what."""

    micros: int
    currency: str
    card_hours: Fraction
    method: str

    def __str__(self) -> str:
        return money(self.micros, self.currency)


def money(micros: int, currency: str) -> str:
    """An amount for people, with two decimals, or as many as it takes to show something."""
    amount = Decimal(micros) / _MICROS
    places = 2 if not micros or abs(amount) >= Decimal("0.01") else 6
    return f"{amount:.{places}f} {currency}".rstrip()


def configured() -> bool:
    """Whether this process is in a session that can be asked about."""
    return all(os.environ.get(name) for name in ("GPUSPAWNER_SERVICE_URL", "GPUSPAWNER_SESSION"))


def session() -> dict[str, Any] | None:
    """The session as the service sees it now; None without one, or if it does not answer."""
    return _get(f"sessions/{_session()}") if configured() else None


def between(start: datetime, end: datetime) -> Cost | None:
    """What the session has cost from `start` to `end` (with time zones); None if that is not known."""
    if not configured():
        return None
    answer = _get(f"events?session={_session()}&limit={MOST_ROWS}")
    rows = answer.get("events") if answer else None
    return of_rows(rows, start, end) if isinstance(rows, list) else None


def of_rows(rows: Iterable[Any], start: datetime, end: datetime) -> Cost | None:
    """Cost of a stretch by ledger rows, newest first: each holds until the next one of its session.

    None where a row cannot be read, or none reaches back to `start`: a part is not the whole.
    """
    by_session: dict[str, list[_Row]] = {}
    for raw in rows:
        row = _row(raw)
        if row is None:
            return None
        by_session.setdefault(row.session, []).append(row)
    first, last = _instant(start), _instant(end)
    eighth_micros = price_micros = 0
    currency = ""
    for held in by_session.values():
        held.sort(key=lambda row: row.at)
        if len(held) >= MOST_ROWS and held[0].at > first:
            return None
        for row, until in zip(held, [*(following.at for following in held[1:]), last], strict=True):
            stretch = max(0, min(until, last) - max(row.at, first))
            eighth_micros += row.eighths * stretch
            price_micros += row.price * stretch
            currency = row.currency or currency
    if not by_session:
        return None
    # half to even, once, at the end
    micros = round(Fraction(price_micros, _HOUR))
    return Cost(micros, currency, Fraction(eighth_micros, 8 * _HOUR), "the hub's ledger: price by time held")


@dataclass(frozen=True)
class _Row:
    session: str
    at: int
    eighths: int
    price: int
    currency: str


def _row(raw: Any) -> _Row | None:
    if not isinstance(raw, Mapping):
        return None
    try:
        at = datetime.fromisoformat(str(raw["at"]))
        price = Decimal(str(raw["price_per_hour"])) * _MICROS
        eighths = raw["eighths"]
        if not isinstance(eighths, int) or isinstance(eighths, bool) or eighths < 0 or price != int(price) or price < 0:
            return None
    except (KeyError, ValueError, InvalidOperation, OverflowError):
        return None
    return _Row(str(raw.get("session")), _instant(at), eighths, int(price), str(raw.get("currency") or ""))


def _instant(at: datetime) -> int:
    """Microseconds since 1970."""
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * _MICROS + since.microseconds


def _session() -> str:
    return quote(os.environ.get("GPUSPAWNER_SESSION", ""), safe="")


def _get(path: str) -> dict[str, Any] | None:
    # Without the environment's proxies and without redirects: the token goes to the service only.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    request = urllib.request.Request(
        f"{os.environ['GPUSPAWNER_SERVICE_URL'].rstrip('/')}/{path}",
        headers={"Authorization": f"Bearer {os.environ.get('JUPYTERHUB_API_TOKEN', '')}"},
    )
    try:
        with opener.open(request, timeout=TIMEOUT) as answer:
            body = json.loads(answer.read(_LARGEST))
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return None
    return body if isinstance(body, dict) else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Leave a redirect to be reported as an error."""
