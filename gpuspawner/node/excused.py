"""What of a session's excess is no offence: its limit was lowered below what it used."""

from __future__ import annotations

import sqlite3
import time


class Excused:
    """What is no offence though it is over the limit, by session and card; on disk, so that a restart is no trap.

    The caller serialises access.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute(
            "CREATE TABLE IF NOT EXISTS excused (session TEXT, card TEXT, bytes INTEGER NOT NULL, since REAL NOT NULL, "
            "PRIMARY KEY (session, card))"
        )
        rows = database.execute("SELECT session, card, bytes, since FROM excused")
        self._known: dict[tuple[str, str], tuple[int, float]] = {
            (session, card): (size, since) for session, card, size, since in rows
        }

    def put(self, session: str, card: str, size: int) -> None:
        """From now on `size` bytes are excused."""
        self._known[session, card] = (size, time.time())
        with self._database:
            self._database.execute(
                "INSERT OR REPLACE INTO excused VALUES (?, ?, ?, ?)", (session, card, *self._known[session, card])
            )

    def fall(self, session: str, card: str, used: int, allowed: int) -> int:
        """What is excused now: it falls with what is used, never rises, and is over once the limit is kept."""
        if (session, card) not in self._known:
            return 0
        size, since = self._known[session, card]
        if used <= allowed:
            self._drop([(session, card)])
            return 0
        self._known[session, card] = (min(size, used), since)
        return min(size, used)

    def of(self, session: str) -> dict[str, int]:
        """Bytes excused of a session, by card."""
        return {card: size for (name, card), (size, _) in self._known.items() if name == session}

    def since(self, session: str, card: str) -> float:
        """When that began, in seconds since the epoch."""
        return self._known[session, card][1]

    def keep(self, sessions: set[str]) -> None:
        """Forget all others."""
        self._drop([key for key in self._known if key[0] not in sessions])

    def _drop(self, keys: list[tuple[str, str]]) -> None:
        if keys:
            with self._database:
                self._database.executemany("DELETE FROM excused WHERE session = ? AND card = ?", keys)
        for key in keys:
            del self._known[key]
