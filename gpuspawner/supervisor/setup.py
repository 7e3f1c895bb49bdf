"""The state folder as the supervisor makes it: folders and secrets."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path


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
