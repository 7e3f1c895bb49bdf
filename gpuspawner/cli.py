"""The command `gpuspawner`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
    policy = commands.add_parser("policy", help="the policy file: check one, or explain it for a user")
    verbs = policy.add_subparsers(dest="verb", required=True)
    check = verbs.add_parser("check", help="read a policy file, and say what is wrong with it")
    check.add_argument("file", nargs="?", help="left out: the one that the service reads")
    explain = verbs.add_parser("explain", help="what the policy in force means for a user")
    explain.add_argument("user")
    given = parser.parse_args(argv)
    try:
        if given.command == "policy":
            return _check_policy(given.file) if given.verb == "check" else _explain_policy(given.user)
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


def _check_policy(file: str | None) -> int:
    from gpuspawner.service.policy.source import parse

    path = Path(file or os.environ.get("GPUSPAWNER_POLICY") or Settings.from_env().state / "policy.yaml")
    try:
        read = parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        print(f"gpuspawner: {path}: {error}", file=sys.stderr)
        return 1
    rules = "no rules: everybody may start everything" if read.rules is None else f"{len(read.rules)} rules"
    print(f"{path}: good. {rules}, {len(read.budgets)} budgets, prices in {read.currency}.")
    return 0


def _explain_policy(user: str) -> int:
    with _service(Settings.from_env()) as service:
        told = _get(service, f"policy/users/{quote(user, safe='')}")
    print(f"{user}: groups {', '.join(told['groups']) or 'none'}; roles {', '.join(told['roles']) or 'none'}")
    if not told["restricted"]:
        print("There are no rules: everybody may start everything.")
        return 0
    print("rules: " + (", ".join(rule["name"] for rule in told["rules"]) or "none"))
    print("rights on their own sessions: " + (", ".join(told["rights"]) or "none"))
    print(f"sessions at once: {'any number' if told['sessions'] is None else told['sessions']}")
    allowed = told["environments"]
    print(f"environments: {'all' if allowed is None else ', '.join(allowed) or 'none'}")
    for start in told["starts"]:
        what = f"{start['share']} {start['model']}".strip()
        print(
            f"  {'may   ' if start['allowed'] else 'may not'} {what}"
            + (f": {start['reason']}" if start["reason"] else "")
        )
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
