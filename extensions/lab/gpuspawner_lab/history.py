"""`%gpu history`: what this session held and what it has cost, from the ledger's rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any

from .shares import SHARES, eighths
from .table import Table

#: Rows that are asked for; the service gives no more at once.
MOST_ROWS = 1000

_NAMES = {eighths(share): share for share in SHARES}
_CENT = Decimal("0.01")


def history(events: Sequence[dict[str, Any]], now: datetime | None = None) -> Table:
    """A table of the session's ledger rows (newest first, as the service gives them), oldest first.

    Cost is price per hour times the time until the next row, as the ledger has both; each row says what its
    stretch has cost. A row that cannot be read makes the sum unknown, not smaller.
    """
    if not events:
        return Table("This session has no history yet.", ("when",), ())
    now = now or datetime.now(UTC)
    rows = []
    total: Decimal | None = Decimal(0)
    ordered = list(reversed(events))
    before: str | None = None
    for row, following in zip(ordered, [*ordered[1:], None], strict=True):
        start = _time(row)
        end = now if following is None else _time(following)
        cost = _cost(row, start, end)
        total = None if total is None or cost is None else total + cost
        share = _share(row.get("eighths"))
        change = share if before is None or before == share else f"{before} → {share}"
        before = share
        rows.append(
            (
                "–" if start is None else start.strftime("%Y-%m-%d %H:%M:%S"),
                str(row.get("kind") or "–"),
                change,
                _money(row.get("price_per_hour"), row),
                "–" if cost is None else f"{cost.quantize(_CENT, ROUND_HALF_EVEN)}",
                str(row.get("actor") or "–"),
            )
        )
    currency = str(ordered[-1].get("currency") or "")
    notes = [
        "Cost so far: unknown, since the ledger has a row that cannot be read here."
        if total is None
        else f"Cost so far: {total.quantize(_CENT, ROUND_HALF_EVEN)} {currency}".rstrip() + "."
    ]
    if len(events) >= MOST_ROWS:
        notes.append(f"Only the newest {MOST_ROWS} rows are shown and counted.")
    return Table(
        "This session so far (times in UTC)",
        ("when", "what", "share", "per hour", "cost", "by"),
        tuple(rows),
        frozenset({3, 4}),
        tuple(notes),
    )


def _time(row: dict[str, Any]) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(row.get("at")))
    except ValueError:
        return None
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def _cost(row: dict[str, Any], start: datetime | None, end: datetime | None) -> Decimal | None:
    try:
        price = Decimal(str(row.get("price_per_hour")))
    except InvalidOperation:
        return None
    if start is None or end is None or not price.is_finite():
        return None
    milliseconds = max(0, round((end - start).total_seconds() * 1000))
    return price * milliseconds / 3_600_000


def _share(held: Any) -> str:
    if not isinstance(held, int) or isinstance(held, bool) or held < 0:
        return "–"
    if held == 0:
        return "nothing"
    return _NAMES.get(held) or (str(held // 8) if held % 8 == 0 else f"{held}/8")


def _money(price: Any, row: dict[str, Any]) -> str:
    return "–" if price is None else f"{price} {row.get('currency') or ''}".rstrip()
