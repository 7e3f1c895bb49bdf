"""The programs of the cluster as processes, each of which a test may kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..common import until
from .host import Host, child_of


class Part:
    """One program. `ready` says whether it works, for as long as it runs."""

    def __init__(
        self,
        host: Host,
        name: str,
        command: Sequence[str | Path],
        *,
        ready: Callable[[], bool] = lambda: True,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = host.folder / "logs" / f"{name}.log"
        self._host = host
        self._command = list(command)
        self._ready = ready
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; `wait` for it to be ready."""
        assert not self.running, f"{self.name} runs already"
        self.log.parent.mkdir(exist_ok=True)
        self._process = self._host.popen(self._command, self.log, {"PATH": os.environ["PATH"], **self._env})

    def wait(self, timeout: float = 120.0) -> None:
        """Wait until it is ready. AssertionError with the end of its log where it has ended or does not get there."""

        def ready() -> bool:
            assert self.running, f"{self.name} ended with {self._process and self._process.returncode}: {self.said()}"
            return self._ready()

        until(ready, timeout, lambda: f"{self.name} to be ready: {self.said()}")

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process as seen from outside the cluster's namespaces."""
        assert self._process is not None
        return child_of(self._process.pid)

    def kill(self, how: int = signal.SIGKILL) -> None:
        """End it, and wait until it is gone."""
        assert self._process is not None
        os.kill(self.pid, how)
        until(self._over, 300, f"{self.name} to be gone")

    def _over(self) -> bool:
        """Whether it is gone. nsenter, its parent, stops itself while its child is stopped, and goes on by itself
        neither when the child does nor when the child ends."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
        return self._process.poll() is not None

    def stop(self) -> None:
        """It does nothing until it is told to `go_on`."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """It goes on. Does nothing to one that was not stopped."""
        assert self._process is not None
        os.kill(self.pid, signal.SIGCONT)
        self._process.send_signal(signal.SIGCONT)

    def restart(self, how: int = signal.SIGKILL) -> None:
        """End it, start it and wait until it is ready."""
        self.kill(how)
        self.start()
        self.wait()

    def said(self) -> str:
        """The last lines of its log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
        except FileNotFoundError:
            return "nothing"
