"""The command `gpuspawner`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import httpx

from gpuspawner import __version__, tls
from gpuspawner.errors import GPUSpawnerError, Unavailable
from gpuspawner.state import Settings

_START = "Start it with: " + os.environ.get("GPUSPAWNER_START_COMMAND", "gpuspawner up")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpuspawner", description="JupyterHub on fractions of a GPU.")
    parser.add_argument("--version", action="version", version=f"gpuspawner {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start everything on this machine, until Ctrl-C")
    commands.add_parser("stop", help="end everything on this machine, running sessions included")
    status = commands.add_parser("status", help="show the cards and the sessions that run")
    status.add_argument("--json", action="store_true", help="as JSON, for programs")
    given = parser.parse_args(argv)
    try:
        if given.command == "status":
            return _status(given.json)
        from gpuspawner import supervisor

        return supervisor.up([]) if given.command == "up" else supervisor.stop()
    except GPUSpawnerError as error:
        print(f"gpuspawner: {error}", file=sys.stderr)
        return 2


def _status(as_json: bool) -> int:
    settings = Settings.from_env()
    try:
        with _service(settings) as service:
            offers, sessions = _get(service, "offers"), _get(service, "sessions")["sessions"]
    except Unavailable as error:
        print(f"gpuspawner: {error}", file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps({"offers": offers["offers"], "sessions": sessions}, indent=2))
        return 0
    label = " (simulated)" if offers["simulated"] else ""
    free = [offer for offer in offers["offers"] if offer["cards"] == 1]
    print(f"cards{label}: free now: " + ", ".join(f"{o['free_places']} x {o['share']} {o['model']}" for o in free))
    for session in sessions:
        used = session["memory_used_bytes"]
        memory = "unknown" if used is None else f"{used / 2**30:.2f} GiB"
        name = "/".join(part for part in (session["user"], session["server"]) if part)
        print(f"{name}: {session['share']} of {session['model']}, {memory} in use, {session['state']}")
    if not sessions:
        print("no session runs")
    return 0


def _service(settings: Settings) -> httpx.Client:
    """A client that shows the service's token, at its socket: a port may belong to somebody else. Unavailable
    where nothing was ever started."""
    try:
        token = settings.secret("service_token")
    except FileNotFoundError:
        raise Unavailable(f"It was never started with the state folder {settings.state}. {_START}") from None
    return httpx.Client(
        base_url=settings.service_api,
        headers={"Authorization": f"Bearer {token}"},
        transport=httpx.HTTPTransport(verify=tls.context(), uds=str(settings.service_socket)),
        timeout=10,
    )


def _get(service: httpx.Client, path: str) -> Any:
    try:
        answer = service.get(f"/{path}")
    except httpx.TransportError:
        raise Unavailable(f"It is not running. {_START}") from None
    if not answer.is_success:
        raise Unavailable(f"The service answers {answer.status_code}: {answer.text[:300]}")
    return answer.json()


if __name__ == "__main__":
    sys.exit(main())
