"""The tables behind requests: answers kept for idempotency keys, and the audit in its chain of hashes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from typing import Any, cast

from sqlalchemy import Engine, Table, bindparam, delete, insert, select, text
from sqlalchemy.exc import IntegrityError

from gpuspawner.service.clock import now_ms
from gpuspawner.service.requests.events import Events
from gpuspawner.service.tables import AuditRow, ReplyRow, SessionRow

_REPLIES, _AUDIT = cast(Table, ReplyRow.__table__), cast(Table, AuditRow.__table__)
_SESSIONS = cast(Table, SessionRow.__table__)
_REPLY = select(_REPLIES).where(_REPLIES.c.key == bindparam("key"))
_KEEP = insert(_REPLIES)
_TOO_OLD = delete(_REPLIES).where(_REPLIES.c.at_ms < bindparam("before"))
_WHOSE = select(_SESSIONS.c.user).where(_SESSIONS.c.id == bindparam("session"))
_LAST = select(_AUDIT.c.id, _AUDIT.c.at_ms, _AUDIT.c.hash).order_by(_AUDIT.c.id.desc()).limit(1)
_AUDIT_LOCK = text("SELECT pg_advisory_xact_lock(7215047)")
#: Milliseconds for which an answer is kept for its key.
KEPT = 24 * 3600 * 1000
#: Milliseconds between two times that answers which are too old are removed.
_SWEEP = 60_000
_HASHED = ("id", "at_ms", "actor", "action", "user", "session", "asked", "why", "source", "status", "prev")


def audit_hash(row: Any) -> str:
    """SHA-256 over a row of the audit and the hash before it, as sorted JSON without spaces."""
    content = {name: row[name] for name in _HASHED}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Records:
    """Reads and writes them. Thread-safe. `events`: where the audit's rows are said too."""

    def __init__(self, engine: Engine, events: Events | None = None) -> None:
        self._engine = engine
        self._events = events
        self._writing = threading.Lock()
        self._next_sweep = 0

    def reply(self, key: str) -> tuple[str, int, str] | None:
        """Fingerprint of the request, status and body of the answer that is kept for a key."""
        with self._engine.connect() as connection:
            found = connection.execute(_REPLY, {"key": key}).one_or_none()
        if found is None or found.at_ms < now_ms() - KEPT:
            return None
        return found.fingerprint, found.status, found.body

    def keep(self, key: str, fingerprint: str, status: int, body: str) -> None:
        """Keep an answer for a key, and now and then forget those that are too old."""
        now = now_ms()
        row = {"key": key, "fingerprint": fingerprint, "status": status, "body": body, "at_ms": now}
        try:
            self._keep(row, now, sweep=now >= self._next_sweep)
        except IntegrityError:
            # one for this key that is too old, or the same request, answered by another service at the same time
            with contextlib.suppress(IntegrityError):
                self._keep(row, now, sweep=True)

    def _keep(self, row: dict[str, Any], now: int, *, sweep: bool) -> None:
        with self._writing, self._engine.begin() as connection:
            if sweep:
                connection.execute(_TOO_OLD, {"before": now - KEPT})
                self._next_sweep = now + _SWEEP
            connection.execute(_KEEP, row)

    def note(self, entry: dict[str, Any]) -> None:
        """Add a row to the audit."""
        with self._writing, self._engine.begin() as connection:
            if entry["session"] and not entry["user"]:
                entry = {**entry, "user": connection.scalar(_WHOSE, {"session": entry["session"]}) or ""}
            if self._engine.dialect.name != "sqlite":
                connection.execute(_AUDIT_LOCK)
            last = connection.execute(_LAST).one_or_none()
            row = {**entry, "at_ms": now_ms() if last is None else max(now_ms(), last.at_ms)}
            row["id"], row["prev"] = (1, "") if last is None else (last.id + 1, last.hash)
            row["hash"] = audit_hash(row)
            connection.execute(insert(_AUDIT), row)
        if self._events is not None:
            self._events.say(row)

    def audit(self, limit: int, before: int | None = None, user: str | None = None) -> list[AuditRow]:
        """Rows of the audit, newest first."""
        query = select(_AUDIT).order_by(_AUDIT.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(_AUDIT.c.id < before)
        if user is not None:
            query = query.where((_AUDIT.c.user == user) | (_AUDIT.c.actor == user))
        with self._engine.connect() as connection:
            return [AuditRow(**found._mapping) for found in connection.execute(query)]

    def audit_problem(self) -> str | None:
        """The first row of the audit that does not fit its chain, in one sentence; None where all do."""
        head = ""
        for row in self._all():
            if row["prev"] != head or row["hash"] != audit_hash(row):
                return f"Row {row['id']} of the audit was changed, or one before it was removed."
            head = row["hash"]
        return None

    def _all(self) -> Iterator[Any]:
        with self._engine.connect() as connection:
            found = connection.execution_options(yield_per=5000).execute(select(_AUDIT).order_by(_AUDIT.c.id))
            for row in found:
                yield row._mapping
