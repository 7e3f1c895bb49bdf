"""The state folder of one machine, its secrets and ports."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpuspawner.errors import InvalidInput

DEFAULT_PORT = 8000
_BASE_URL = re.compile(r"/?(?:[A-Za-z0-9._-]+/)*[A-Za-z0-9._-]*\Z", re.ASCII)


def yes_or_no(env: Mapping[str, str], name: str) -> bool:
    """A setting that is `yes` or `no`, the latter where it is not set. Raises InvalidInput."""
    given = env.get(name) or "no"
    if given not in ("yes", "no"):
        raise InvalidInput(
            f"{name}: {given[:20]!r} is not allowed. Allowed: yes or no.",
            field=name,
            given=given,
            allowed="yes or no",
        )
    return given == "yes"


@dataclass(frozen=True)
class Settings:
    """Where state lives, and the ports: the public one and the three after it. All on 127.0.0.1."""

    state: Path
    port: int
    base_url: str
    choose_card: bool = False
    burst: bool = False
    #: whether sessions are parked for more urgent ones
    parking: bool = False
    #: the folder of a Python environment with PyTorch and the runtime, to be offered beside the hub's own
    runtime: Path | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Settings:
        """From GPUSPAWNER_STATE, _PORT, _BASE_URL, _CHOOSE_CARD, _BURST, _PARKING and _RUNTIME. Raises InvalidInput."""
        home = Path(env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        state = Path(env.get("GPUSPAWNER_STATE") or home / "gpuspawner").expanduser().absolute()
        text = env.get("GPUSPAWNER_PORT") or str(DEFAULT_PORT)
        if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1024 <= int(text) <= 65532):
            raise InvalidInput(
                f"GPUSPAWNER_PORT: {text[:20]!r} is not allowed. Allowed: 1024 to 65532.",
                field="GPUSPAWNER_PORT",
                given=text,
                allowed="1024 to 65532",
            )
        given = env.get("GPUSPAWNER_BASE_URL") or "/"
        if not _BASE_URL.match(given):
            allowed = "letters, digits, dots, dashes and underscores between slashes"
            raise InvalidInput(
                f"GPUSPAWNER_BASE_URL: {given[:40]!r} is not allowed. Allowed: {allowed}.",
                field="GPUSPAWNER_BASE_URL",
                given=given,
                allowed=allowed,
            )
        base_url = "/" + given.strip("/")
        return cls(
            state,
            int(text),
            base_url if base_url.endswith("/") else f"{base_url}/",
            yes_or_no(env, "GPUSPAWNER_CHOOSE_CARD"),
            yes_or_no(env, "GPUSPAWNER_BURST"),
            yes_or_no(env, "GPUSPAWNER_PARKING"),
            _runtime(env),
        )

    @property
    def proxy_api_port(self) -> int:
        """Where the hub tells the proxy its routes."""
        return self.port + 1

    @property
    def hub_port(self) -> int:
        """Where the hub listens behind the proxy."""
        return self.port + 2

    @property
    def service_port(self) -> int:
        """Where the service listens."""
        return self.port + 3

    @property
    def ports(self) -> tuple[int, ...]:
        """All four."""
        return (self.port, self.proxy_api_port, self.hub_port, self.service_port)

    @property
    def service_prefix(self) -> str:
        """The service's path, on its own port and through the proxy."""
        return f"{self.base_url}services/gpuspawner/"

    @property
    def service_api(self) -> str:
        """The REST API's address on this machine."""
        return f"http://127.0.0.1:{self.service_port}{self.service_prefix}api/v1"

    @property
    def service_socket(self) -> Path:
        """The socket at which the hub speaks to the service. Sessions reach every port of the machine and may take one
        whose owner is down, but they never see this folder: what is sent here reaches the service or nobody."""
        return self.state / "run" / "service.sock"

    @property
    def hub_api(self) -> str:
        """JupyterHub's REST API on this machine."""
        return f"http://127.0.0.1:{self.hub_port}{self.base_url}hub/api"

    def secret(self, name: str) -> str:
        """A secret that set-up has made, such as "service_token"."""
        return (self.state / "secrets" / name).read_text().strip()


def _runtime(env: Mapping[str, str]) -> Path | None:
    given = env.get("GPUSPAWNER_RUNTIME")
    if not given:
        return None
    folder = Path(given)
    if not folder.is_absolute() or not os.access(folder / "bin/python", os.X_OK):
        allowed = "the absolute path of a Python environment"
        raise InvalidInput(
            f"GPUSPAWNER_RUNTIME: {given[:80]!r} is not allowed. Allowed: {allowed}.",
            field="GPUSPAWNER_RUNTIME",
            given=given,
            allowed=allowed,
        )
    return folder


def public_url(settings: Settings, env: Mapping[str, str] = os.environ) -> str | None:
    """GPUSPAWNER_PUBLIC_URL: where people reach the hub through a reverse proxy, ending in a slash; None: they do not.

    Raises InvalidInput, also where its path is not the one below which everything is served.
    """
    given = env.get("GPUSPAWNER_PUBLIC_URL", "").strip()
    if not given:
        return None
    url = urlsplit(given)
    if url.scheme not in ("http", "https") or not url.hostname or f"{url.path.rstrip('/')}/" != settings.base_url:
        allowed = (
            f"https://HOST{settings.base_url} or http://HOST{settings.base_url} (with GPUSPAWNER_BASE_URL as path)"
        )
        raise InvalidInput(
            f"GPUSPAWNER_PUBLIC_URL: {given[:80]!r} is not allowed. Allowed: {allowed}.",
            field="GPUSPAWNER_PUBLIC_URL",
            given=given,
            allowed=allowed,
        )
    return f"{url.scheme}://{url.netloc}{settings.base_url}"
