"""Runs the service: `python -m gpuspawner.service`.

Settings come from the environment, secrets from the state directory.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
from pathlib import Path

import uvicorn
from jupyterhub.services.auth import HubAuth

from gpuspawner.errors import GPUSpawnerError, InvalidInput, Unavailable
from gpuspawner.idle import IdleTimes
from gpuspawner.service.app import create_app
from gpuspawner.service.auth import TOKEN_CACHE_SECONDS, Authenticator
from gpuspawner.service.database import open_database
from gpuspawner.service.leader import leadership_of
from gpuspawner.service.panel.signin import PageSignIn
from gpuspawner.service.place import Place
from gpuspawner.service.policy.book import Book
from gpuspawner.service.policy.people import HubDirectory
from gpuspawner.service.policy.source import PolicySource
from gpuspawner.service.requests.events import Events
from gpuspawner.service.requests.rate import RateLimit
from gpuspawner.service.sessions import SessionService
from gpuspawner.service.store import Store
from gpuspawner.service.tariff import CurrentTariff
from gpuspawner.service.waiting.servers import HubServers
from gpuspawner.state import Settings


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # httpx logs every request's address, of which this service makes none that a person would want to read.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    os.umask(0o022)
    try:
        settings = Settings.from_env()
        place = Place.from_env(settings)
        token = place.token
        folder = settings.state / "service"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        told = os.environ.get("GPUSPAWNER_EVENT_LOG")
        events = Events(Path(told).expanduser().absolute()) if told else None
        rate = _rate(os.environ.get("GPUSPAWNER_REQUESTS_PER_SECOND") or "50")
        named = os.environ.get("GPUSPAWNER_POLICY")
        path = Path(named).expanduser().absolute() if named else settings.state / "policy.yaml"
        source = PolicySource(path, folder / "policy-in-force.yaml", required=bool(named))
        book = Book(source, HubDirectory(place.hub_api, token))
        tariff = CurrentTariff(lambda: source.current.prices)
        url = os.environ.get("GPUSPAWNER_DATABASE_URL") or f"sqlite:///{folder / 'service.sqlite'}"
        store = Store(open_database(url), tariff)
        servers = HubServers(place.hub_api, token) if settings.parking else None
        sessions = SessionService(
            place.open_fleet(settings), store, IdleTimes.from_env(), book, leadership_of(store.engine), servers
        )
        sockets = [_port(place.host, settings.service_port), _private_socket(settings.service_socket)]
    except (GPUSpawnerError, OSError) as error:
        print(f"gpuspawner service: {error}", file=sys.stderr)
        return 1
    hub_auth = HubAuth(api_token=token, api_url=place.hub_api, cache_max_age=TOKEN_CACHE_SECONDS)
    app = create_app(
        sessions,
        Authenticator(hub_auth, token),
        tariff,
        settings.service_prefix,
        choose_card=settings.choose_card,
        burst=settings.burst,
        rate=RateLimit(rate),
        events=events,
        sign_in=PageSignIn(token, settings.service_prefix, place.hub_api),
    )
    _answer_promptly()
    uvicorn.Server(uvicorn.Config(app, log_level="info", access_log=False)).run(sockets)
    return 0


def _rate(given: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) <= 6):
        raise InvalidInput(
            f"GPUSPAWNER_REQUESTS_PER_SECOND: {given[:20]!r} is not allowed. Allowed: a whole number; 0 is no limit.",
            field="GPUSPAWNER_REQUESTS_PER_SECOND",
            given=given,
        )
    return int(given)


def _answer_promptly() -> None:
    """For the longest waits of a request, not for throughput: the watcher's thread gives way within half a
    millisecond and not five, and the collector does not walk all that was imported."""
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()


def _port(host: str, port: int) -> socket.socket:
    # The protocol by name: asyncio sends small answers at once (TCP_NODELAY) only on a socket that says it is TCP's.
    # Else the second part of each answer waits for the first one's acknowledgement, 40 ms.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    return listener


def _private_socket(path: Path) -> socket.socket:
    """A socket for the user that runs this alone. One left from before is nobody's: the agent's lock is ours."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise Unavailable(f"The socket {path} cannot be made: {error}. A shorter GPUSPAWNER_STATE may help.") from error
    path.chmod(0o600)
    return listener


if __name__ == "__main__":
    sys.exit(main())
