"""The tables behind requests: answers kept for idempotency keys, and the audit in its chain of hashes."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from typing import Any, cast

from sqlalchemy import Engine, Table, delete, insert, select, text
from sqlalchemy.exc import IntegrityError

from gpuspawner.service.clock import now_ms
from gpuspawner.service.requests.events import Events
from gpuspawner.service.tables import AuditRow, ReplyRow, SessionRow

_REPLIES, _AUDIT = cast(Table, ReplyRow.__table__), cast(Table, AuditRow.__table__)
_SESSIONS = cast(Table, SessionRow.__table__)
_LAST = select(_AUDIT.c.id, _AUDIT.c.at_ms, _AUDIT.c.hash).order_by(_AUDIT.c.id.desc()).limit(1)
_AUDIT_LOCK = text("SELECT pg_advisory_xact_lock(7215047)")
#: Milliseconds for which an answer is kept for its key.
KEPT = 24 * 3600 * 1000
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

    def reply(self, key: str) -> tuple[str, int, str] | None:
        """Fingerprint of the request, status and body of the answer that is kept for a key."""
        with self._engine.connect() as connection:
            found = connection.execute(select(_REPLIES).where(_REPLIES.c.key == key)).one_or_none()
        if found is None or found.at_ms < now_ms() - KEPT:
            return None
        return found.fingerprint, found.status, found.body

    def keep(self, key: str, fingerprint: str, status: int, body: str) -> None:
        """Keep an answer for a key, and forget those that are too old."""
        row = {"key": key, "fingerprint": fingerprint, "status": status, "body": body, "at_ms": now_ms()}
        try:
            with self._writing, self._engine.begin() as connection:
                connection.execute(delete(_REPLIES).where(_REPLIES.c.at_ms < now_ms() - KEPT))
                connection.execute(insert(_REPLIES), row)
        except IntegrityError:  # the same request, answered by another service at the same time
            return

    def note(self, entry: dict[str, Any]) -> None:
        """Add a row to the audit."""
        with self._writing, self._engine.begin() as connection:
            if entry["session"] and not entry["user"]:
                whose = select(_SESSIONS.c.user).where(_SESSIONS.c.id == entry["session"])
                entry = {**entry, "user": connection.scalar(whose) or ""}
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
