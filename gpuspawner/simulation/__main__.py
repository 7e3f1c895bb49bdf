"""Simulated cards by hand: `python -m gpuspawner.simulation --cards 2*h100-80gb [--timed] [-- PROGRAM ...]`."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys

from gpuspawner.simulation import BuildError, ControlError, SimulatedCards, SimulationError, control


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpuspawner.simulation",
        description="Play simulated GPU cards, for a program or until Ctrl-C. Kernels are not computed on them.",
    )
    parser.add_argument("--cards", default="2*h100-80gb", help="such as 2*h100-80gb or 1*v100-32gb,2*a100-80gb")
    parser.add_argument("--timed", action="store_true", help="kernel launches take time instead of being refused")
    parser.add_argument("--socket", help="where the daemon listens (default: in a temporary folder)")
    parser.add_argument("--node", type=int, default=0, help="0 to 65535, part of every card's UUID")
    parser.add_argument("--control", metavar="COMMAND", help="send one command to the daemon at --socket and end")
    parser.add_argument("program", nargs="*", help="run this with the cards and end with it")
    return parser


def _wait_for_interrupt() -> None:
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    signal.sigwait(signals)


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        if options.control is not None:
            path = options.socket or os.environ.get("GPUSPAWNER_SIM_SOCKET")
            if not path:
                print("--control needs --socket or GPUSPAWNER_SIM_SOCKET", file=sys.stderr)
                return 2
            print(control(path, options.control) or "ok")
            return 0
        with SimulatedCards(options.cards, timed=options.timed, socket=options.socket, node=options.node) as cards:
            if options.program:
                return subprocess.run(options.program, env=os.environ | cards.env(), check=False).returncode
            for name, value in cards.env().items():
                print(f"export {name}={shlex.quote(value)}")
            print("# Simulated cards are up; Ctrl-C ends them.", flush=True)
            _wait_for_interrupt()
            return 0
    except (BuildError, ControlError, SimulationError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
