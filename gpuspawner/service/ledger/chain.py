"""The ledger's rows in a chain: each has a hash over what it says and over the hash before it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: What a hash is over, in the order of names that JSON sorts them into.
COLUMNS = (
    *("id", "at_ms", "session", "user", "server", "kind", "model", "cards", "eighths", "price_micros", "currency"),
    *("actor", "reason", "node", "cost_micros", "counter_mj", "energy_mj", "co2_ug", "method", "amount_micros"),
    *("corrects", "prev", "project"),
)


def hash_of(row: Mapping[str, Any]) -> str:
    """SHA-256 over a row's columns, the last row's hash (`prev`) among them, as sorted JSON without spaces. A project
    that is null is left out."""
    content = {name: row[name] for name in COLUMNS}
    if content["project"] is None:  # rows of before have no such column
        del content["project"]
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class Verified:
    """What was found. `head`: the last row's hash, to be kept elsewhere; a ledger that was cut off has another one.
    `problem`: the first row that is wrong, in one sentence."""

    rows: int
    head: str
    problem: str | None = None


def verify(rows: Iterable[Mapping[str, Any]], known_head: str | None = None) -> Verified:
    """Whether `rows`, all of the ledger in order, are a whole chain in which `known_head` occurs."""
    count, head, at, last = 0, "", 0, 0
    seen = not known_head
    for row in rows:
        problem = None
        if row["id"] <= last:
            problem = "stands in the wrong place"
        elif row["prev"] != head:
            problem = "does not follow the row before it: one was changed, removed or put in"
        elif row["hash"] != hash_of(row):
            problem = "was changed"
        elif row["at_ms"] < at and row["kind"] != "correction":
            problem = "is from before the row before it"
        if problem:
            return Verified(count, head, f"Row {row['id']} {problem}.")
        count, head, at, last = count + 1, row["hash"], row["at_ms"], row["id"]
        seen = seen or head == known_head
    if not seen:
        return Verified(count, head, "The known head does not occur: rows were removed at the end.")
    return Verified(count, head)
