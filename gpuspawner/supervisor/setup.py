"""The state folder as the supervisor makes it: folders, secrets, logs."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

_LOGS_KEPT = 5
_SERVER_LOGS_KEPT_DAYS = 14


def _words(count: int) -> Callable[[], str]:
    """A maker of passwords of `count` pronounceable words, 13 random bits each: "kuma-rodi-lebo-tavi"."""

    def make() -> str:
        syllables = [c + v for c in "bdfghjklmnprstvwyz" for v in "aeiou"]
        return "-".join(secrets.choice(syllables) + secrets.choice(syllables) for _ in range(count))

    return make


def _token() -> str:
    return secrets.token_hex(32)


#: What is made at the first start. JupyterHub wants 32 characters or more for the administrator's password,
#: and reads its cookie secret as 32 bytes in hex.
SECRETS: dict[str, Callable[[], str]] = {
    "user_password": _words(4),
    "admin_password": _words(8),
    "service_token": _token,
    "proxy_token": _token,
    "culler_token": _token,
    "cookie_secret": _token,
}


def create(state: Path) -> None:
    """Make the state folder (mode 0700) and the secrets (0600) that are missing; those there stay as they are."""
    for folder in (state, state / "secrets"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    for name in ("hub", "run", "logs", "service"):
        (state / name).mkdir(mode=0o700, exist_ok=True)
    for name, make in SECRETS.items():
        file = state / "secrets" / name
        if not file.exists():
            write_private(file, make() + "\n")


def write_private(file: Path, text: str) -> None:
    """Write a file of mode 0600, whole or not at all."""
    new = file.with_name(f".{file.name}.{os.getpid()}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    new.replace(file)


def rotate_logs(logs: Path) -> None:
    """Number the last run's logs (NAME.log.1 is the newest) and drop servers' logs of long ago."""
    for current in logs.glob("*.log"):
        for number in range(_LOGS_KEPT - 1, 0, -1):
            older = current.with_name(f"{current.name}.{number}")
            if older.exists():
                older.replace(current.with_name(f"{current.name}.{number + 1}"))
        current.replace(current.with_name(f"{current.name}.1"))
    oldest = time.time() - _SERVER_LOGS_KEPT_DAYS * 86400
    for log in (logs / "servers").glob("*.log"):
        if log.stat().st_mtime < oldest:
            log.unlink()
