"""The command `gpuspawner`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from gpuspawner import __version__, commands
from gpuspawner.errors import GPUSpawnerError, Unavailable
from gpuspawner.queue import command as queue_command

_START = "Start it with: " + os.environ.get("GPUSPAWNER_START_COMMAND", "gpuspawner up")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpuspawner", description="JupyterHub on fractions of a GPU.")
    parser.add_argument("--version", action="version", version=f"gpuspawner {__version__}")
    words = parser.add_subparsers(dest="command", required=True)
    words.add_parser("up", help="start everything on this machine, until Ctrl-C")
    words.add_parser("stop", help="end everything on this machine, running sessions included")
    commands.add(words)
    commands.add_queue(queue_command.add(words))
    given = parser.parse_args(argv)
    try:
        if given.command in ("up", "stop"):
            from gpuspawner import supervisor

            return supervisor.up([]) if given.command == "up" else supervisor.stop()
        if given.command == "queue" and given.act in queue_command.ACTS:
            return queue_command.run(given)
        return commands.run(given)
    except Unavailable as error:
        print(f"gpuspawner: {error} {_START}", file=sys.stderr)
        return 1
    except GPUSpawnerError as error:
        print(f"gpuspawner: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
