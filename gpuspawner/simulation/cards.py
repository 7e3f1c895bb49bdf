"""Start and stop a daemon with simulated cards."""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from gpuspawner.simulation.build import DAEMON, build
from gpuspawner.simulation.control import Control

_READY_SECONDS = 20.0
_END_SECONDS = 5.0


class SimulationError(RuntimeError):
    """The daemon did not start; the message is what it said."""


def check_spec(cards: str) -> None:
    """Whether cards such as "2*h100-80gb" can be played. Raises `SimulationError` saying what is allowed.

    The daemon itself is asked; where it is not built yet, nothing is checked.
    """
    if DAEMON.is_file():
        argv = [str(DAEMON), "--check", "--cards", cards]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_READY_SECONDS, check=False)
        if done.returncode:
            raise SimulationError(done.stderr.strip().removeprefix("gpuspawner-simd: "))


class SimulatedCards:
    """Simulated cards for as long as the `with` block lasts.

    `cards` is such as "2*h100-80gb" or "1*v100-32gb,2*a100-80gb"; `timed` lets kernel launches take time instead of
    being refused; `socket` is where the daemon listens (default: in a new temporary folder that any user can enter);
    `node` (0 to 65535) is part of every card's UUID, for several simulated machines on one.
    """

    def __init__(
        self, cards: str = "2*h100-80gb", *, timed: bool = False, socket: str | Path | None = None, node: int = 0
    ) -> None:
        self.cards = cards
        self.timed = timed
        self.node = node
        self._given_socket = Path(socket) if socket is not None else None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None
        self._socket: Path | None = self._given_socket

    @property
    def socket(self) -> Path:
        """Where the daemon listens. Raises `SimulationError` before the start, when it is not yet known."""
        if self._socket is None:
            raise SimulationError("the simulated cards are not running")
        return self._socket

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        if self._daemon is None:
            raise SimulationError("the simulated cards are not running")
        return self._daemon.pid

    def start(self) -> Self:
        """Start the daemon and wait until it listens. Raises `SimulationError`, or `BuildError` from the build."""
        if self._daemon is not None:
            raise SimulationError("the simulated cards are running already")
        build()
        if self._given_socket is None:
            self._folder = tempfile.TemporaryDirectory(prefix="gpuspawner-cards-")
            Path(self._folder.name).chmod(0o755)
            self._socket = Path(self._folder.name) / "simulation.sock"
        argv = [str(DAEMON), "--socket", str(self.socket), "--cards", self.cards, "--node", str(self.node)]
        if self.timed:
            argv.append("--timed")
        self._daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def _await_ready(self) -> None:
        assert self._daemon is not None
        assert self._daemon.stdout is not None
        assert self._daemon.stderr is not None
        ready, _, _ = select.select([self._daemon.stdout], [], [], _READY_SECONDS)
        line = self._daemon.stdout.readline() if ready else b""
        if line != b"ready " + os.fsencode(self.socket) + b"\n":
            self._daemon.kill()
            said = self._daemon.stderr.read().decode(errors="replace").strip()
            raise SimulationError(said or "gpuspawner-simd did not become ready")
        self._daemon.stdout.close()
        self._daemon.stderr.close()

    def stop(self) -> None:
        """End the daemon, which removes its socket. Processes that still hold memory lose it. May be called twice."""
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.terminate()
            try:
                daemon.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            for stream in (daemon.stdout, daemon.stderr):
                if stream is not None:
                    stream.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
            self._socket = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def env(self) -> dict[str, str]:
        """The variables that a program needs to use these cards, `LD_LIBRARY_PATH` with what it was behind ours."""
        path = os.pathsep.join(part for part in (str(DAEMON.parent), os.environ.get("LD_LIBRARY_PATH", "")) if part)
        return {"GPUSPAWNER_SIM_SOCKET": str(self.socket), "LD_LIBRARY_PATH": path}

    def control(self, command: str) -> str:
        """One control command, such as "set 0 temperature 91". Raises `ControlError`."""
        with self.connect() as connection:
            return connection.command(command)

    def connect(self) -> Control:
        """A connection for several control commands."""
        return Control(self.socket)

    def used_bytes(self, card: int = 0) -> int:
        """Memory in use on a card, as the device itself counts it."""
        with self.connect() as connection:
            return int(connection.state()["cards"][card]["used_bytes"])

    def await_used(self, used: int, card: int = 0, seconds: float = 10.0) -> None:
        """Wait until the card's memory in use is `used` bytes. Raises `TimeoutError` with what it was."""
        deadline = time.monotonic() + seconds
        with self.connect() as connection:
            while (now := int(connection.state()["cards"][card]["used_bytes"])) != used:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"card {card}: {now} bytes in use, expected {used}")
                time.sleep(0.005)
