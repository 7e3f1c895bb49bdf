"""The local account that a user's sessions run under, and their home."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path

#: First uid given out where the agent may change uids. Above what distributions, systemd's dynamic users,
#: and subordinate ids use by default; below 2^31, which some file systems cannot pass.
FIRST_UID = 1_900_000_000

_SAFE = re.compile(r"[a-z0-9][a-z0-9-]{0,30}\Z", re.ASCII)
_HASHED_TAIL = re.compile(r"-[a-z2-7]{16}\Z")


@dataclass(frozen=True)
class Account:
    """Where and as whom a user's sessions run. `uid` is None where they run as the agent's own user."""

    name: str
    uid: int | None
    home: Path


def safe_name(user: str) -> str:
    """A file-system and passwd safe name for any user name; two names never share one.

    A plain lower-case name stays itself. Others are folded and get 80 bits of their hash, too many to search for a
    name with somebody else's; a plain name that looks like such a result gets them too.
    """
    if _SAFE.match(user) and not _HASHED_TAIL.search(user):
        return user
    folded = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-")[:14].strip("-") or "user"
    tail = base64.b32encode(hashlib.sha256(user.encode()).digest()[:10]).decode().lower()
    return f"{folded}-{tail}"


class Accounts:
    """Gives every user one account, for good, in the agent's database.

    `own_uids`: whether users get uids of their own. That needs root, and a machine on which a session can be
    given a view of its own: without one, a uid of its own could not even enter root's folders to read Python.
    """

    def __init__(
        self, database: sqlite3.Connection, homes: Path, *, own_uids: bool, first_uid: int = FIRST_UID
    ) -> None:
        self._database = database
        self._homes = homes
        self._own_uids = own_uids
        self._first_uid = first_uid
        database.execute("CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, uid INTEGER UNIQUE NOT NULL)")

    def of(self, user: str) -> Account:
        """The user's account; made with its home folder (mode 0700) at first use. The caller holds the agent's lock."""
        name = safe_name(user)
        uid = self._uid(name) if self._own_uids else None
        self._homes.mkdir(mode=0o711, parents=True, exist_ok=True)
        home = self._homes / name
        if not home.exists():
            home.mkdir(mode=0o700)
        if uid is not None and home.stat().st_uid != uid:
            os.chown(home, uid, uid)
        return Account(name, uid, home)

    def _uid(self, name: str) -> int:
        with self._database:
            self._database.execute(
                "INSERT OR IGNORE INTO accounts (name, uid) SELECT ?, COALESCE(MAX(uid) + 1, ?) FROM accounts",
                (name, self._first_uid),
            )
        row = self._database.execute("SELECT uid FROM accounts WHERE name = ?", (name,)).fetchone()
        return int(row[0])
