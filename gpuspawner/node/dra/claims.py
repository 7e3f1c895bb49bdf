"""Claims as the API server shows them, and what the node remembers of each. No I/O but the store's own."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpuspawner import kubernetes_names as names
from gpuspawner.errors import InvalidInput, Unavailable, shorten

Object = Mapping[str, Any]

_SCHEMA = "CREATE TABLE IF NOT EXISTS claims (session TEXT PRIMARY KEY, content TEXT NOT NULL)"


@dataclass(frozen=True)
class Part:
    """One result of an allocation: `eighths` promised of one device. `share_id` is None where the device is whole."""

    request: str
    pool: str
    device: str
    share_id: str | None
    eighths: int


@dataclass(frozen=True)
class Allocation:
    """What the scheduler gave a claim of one node's cards. `pods`: uids of those that may use it."""

    namespace: str
    name: str
    uid: str
    parts: tuple[Part, ...]
    pods: tuple[str, ...]

    @property
    def session(self) -> str:
        """The node's name for it: the claim's uid and a mark of this allocation, since a claim may get another."""
        marks = ",".join(sorted(f"{part.pool}/{part.device}/{part.share_id}" for part in self.parts))
        return f"{self.uid}-{hashlib.sha256(marks.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Wish:
    """What the service wants for a claim: its `number`-th wish."""

    number: int
    eighths: int
    forced: bool
    burst: bool


@dataclass(frozen=True)
class Outcome:
    """How a wish ended: a reason of `kubernetes_names` and a sentence for a person. `need_to_free_bytes`: for a shrink
    below what is in use."""

    reason: str
    message: str
    need_to_free_bytes: int | None = None


@dataclass(frozen=True)
class Prepared:
    """What the node remembers of a claim that it prepared. `number`: of the last wish that was answered, 0 if none was;
    `outcome`: how that ended."""

    session: str
    namespace: str
    name: str
    uid: str
    parts: tuple[Part, ...]
    pods: tuple[str, ...]
    number: int = 0
    outcome: Outcome | None = None

    @property
    def key(self) -> tuple[str, str]:
        """By which the API server knows it."""
        return self.namespace, self.name


def allocation(claim: Object, node: str) -> Allocation | None:
    """What a claim was allocated of our driver on this node; None where that is nothing.

    Raises InvalidInput for an allocation that this node cannot serve.
    """
    results = (claim.get("status", {}).get("allocation") or {}).get("devices", {}).get("results") or []
    own = [each for each in results if each["driver"] == names.DRIVER and each["pool"] == node]
    if not own:
        return None
    if any(each.get("adminAccess") for each in own):
        raise _unfit(claim, "it asks for admin access, which a card does not have")
    parts = tuple(
        Part(each["request"], each["pool"], each["device"], each.get("shareID"), _eighths(each)) for each in own
    )
    if any(part.eighths < 1 for part in parts):
        raise _unfit(claim, "it was allocated no eighths; it has to ask for 1, 2, 4 or 8")
    if len(parts) > 1 and any(part.eighths != 8 for part in parts):
        raise _unfit(claim, "several cards are only given out whole")
    if len({part.device for part in parts}) < len(parts):
        raise _unfit(claim, "it was allocated one card twice")
    meta = claim["metadata"]
    reserved = claim["status"].get("reservedFor") or []
    pods = tuple(each["uid"] for each in reserved if each["resource"] == "pods")
    return Allocation(meta["namespace"], meta["name"], meta["uid"], parts, pods)


def wish(claim: Object) -> Wish | Outcome | None:
    """What the claim's annotations ask for; an Outcome where that cannot be read, None where they ask for nothing."""
    found = claim["metadata"].get("annotations") or {}
    if names.WANTED_EIGHTHS not in found:
        return None
    eighths = names.whole_number(found[names.WANTED_EIGHTHS])
    number = names.whole_number(found.get(names.WANTED_NUMBER))
    if not number:
        given = found.get(names.WANTED_NUMBER)
        return Outcome(
            names.REASON_INVALID,
            f"{names.WANTED_NUMBER}: {shorten(given)!r} is not allowed. Allowed: a whole number from 1, "
            "one higher with each wish.",
        )
    if eighths not in (1, 2, 4, 8):
        given = found[names.WANTED_EIGHTHS]
        return Outcome(
            names.REASON_INVALID, f"{names.WANTED_EIGHTHS}: {shorten(given)!r} is not allowed. Allowed: 1, 2, 4 or 8."
        )
    return Wish(number, eighths, found.get(names.WANTED_FORCED) == "true", found.get(names.WANTED_BURST) == "true")


def wish_number(claim: Object) -> int:
    """The number of the claim's wish, 0 where it has none that can be read."""
    return names.whole_number((claim["metadata"].get("annotations") or {}).get(names.WANTED_NUMBER)) or 0


def _eighths(result: Object) -> int:
    """The eighths of a result; 8 where it has none, since then the device went to it whole."""
    text = (result.get("consumedCapacity") or {}).get(names.EIGHTHS)
    if text is None:
        return 0 if result.get("shareID") else 8
    number = names.whole_number(str(text))
    if number is None:
        raise InvalidInput(f"eighths: {str(text)[:40]!r} is not allowed. Allowed: whole numbers from 1 to 8.")
    return number


def _unfit(claim: Object, why: str) -> InvalidInput:
    meta = claim["metadata"]
    return InvalidInput(f"The claim {meta['namespace']}/{meta['name']} cannot be served: {why}.")


class Claims:
    """What is remembered, in memory and in SQLite; each change is on disk when the method returns. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises Unavailable, naming the file, where it cannot be used."""
        self._claims: dict[str, Prepared] = {}
        self._lock = threading.RLock()
        try:
            self._database = sqlite3.connect(path, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS claims (session TEXT PRIMARY KEY, content TEXT NOT NULL)"
            )
            for session, content in self._database.execute("SELECT session, content FROM claims"):
                self._claims[session] = _read(session, json.loads(content))
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            raise Unavailable(f"The node's claims in {path} cannot be used: {error}.", code="storage") from error

    def get(self, session: str) -> Prepared | None:
        """What is remembered of a session."""
        return self._claims.get(session)

    def all(self) -> list[Prepared]:
        """Everything."""
        with self._lock:
            return list(self._claims.values())

    def of_uid(self, uid: str) -> list[Prepared]:
        """What is remembered of a claim: more than one thing where an older allocation of it has not gone yet."""
        return [each for each in self.all() if each.uid == uid]

    def put(self, prepared: Prepared) -> None:
        """Remember, new or changed."""
        content = {name: value for name, value in asdict(prepared).items() if name != "session"}
        with self._lock:
            with self._database:
                self._database.execute(
                    "INSERT OR REPLACE INTO claims VALUES (?, ?)", (prepared.session, json.dumps(content))
                )
            self._claims[prepared.session] = prepared

    def answer(self, session: str, number: int, outcome: Outcome) -> Prepared:
        """A wish was answered."""
        with self._lock:
            changed = replace(self._claims[session], number=number, outcome=outcome)
            self.put(changed)
            return changed

    def remove(self, session: str) -> None:
        """Forget a session."""
        with self._lock:
            with self._database:
                self._database.execute("DELETE FROM claims WHERE session = ?", (session,))
            self._claims.pop(session, None)

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _read(session: str, content: dict[str, Any]) -> Prepared:
    outcome = content.pop("outcome")
    parts = tuple(Part(**part) for part in content.pop("parts"))
    pods = tuple(content.pop("pods"))
    return Prepared(session, parts=parts, pods=pods, outcome=Outcome(**outcome) if outcome else None, **content)
