"""The command `gpuspawner`."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from gpuspawner import __version__
from gpuspawner.errors import GPUSpawnerError
from gpuspawner.state import Settings


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
    try:
        offers, sessions = _get("offers"), _get("sessions")["sessions"]
    except (OSError, urllib.error.URLError) as error:
        print(f"gpuspawner: nothing answers here ({error}). Start it with: gpuspawner up", file=sys.stderr)
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


def _get(path: str) -> Any:
    settings = Settings.from_env()
    try:
        token = settings.secret("service_token")
    except FileNotFoundError as error:
        raise OSError("it was never started") from error
    request = urllib.request.Request(f"{settings.service_api}/{path}", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main())
