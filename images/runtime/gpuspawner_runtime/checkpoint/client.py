"""The training's end of the link to its writer process."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpuspawner_runtime
from gpuspawner_runtime.errors import RuntimeFault

_LARGEST_MESSAGE = 128 * 1024


class WriterProcess:
    """Starts the writer, sends it jobs and passes on what it tells: `on_event(event)` on a thread of its own.

    `keep_open`: descriptors that it holds too, such as the lock of the run.
    """

    def __init__(self, on_event: Callable[[dict[str, Any]], None], keep_open: tuple[int, ...] = ()) -> None:
        self._on_event = on_event
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # nothing from the notebook's folder, and this package from where it is, behind everything else
        code = "import sys; sys.path.append(sys.argv[2]); from gpuspawner_runtime.checkpoint.writer import main; main()"
        here = str(Path(gpuspawner_runtime.__file__).parents[1])
        try:
            # a session of its own: Ctrl-C and the end of a group of processes do not reach it
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code, str(theirs.fileno()), here],
                pass_fds=(theirs.fileno(), *keep_open),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
            )
        finally:
            theirs.close()
        self._idle = threading.Event()
        self._idle.set()
        self._listener = threading.Thread(target=self._listen, name="checkpoint-events", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def idle(self) -> bool:
        return self._idle.is_set()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Until it has nothing to do; False if it takes longer than `timeout` seconds."""
        return self._idle.wait(timeout)

    def share(self, descriptor: int, size: int) -> None:
        """Tell it where snapshots lie."""
        self._send({"do": "memory", "bytes": size}, [descriptor])

    def save(self, job: dict[str, Any]) -> None:
        self._idle.clear()
        try:
            self._send({"do": "save", **job}, [])
        except RuntimeFault:
            self._idle.set()
            raise

    def close(self, timeout: float = 600.0) -> None:
        """Let it finish what it has, and end."""
        self._idle.wait(timeout)
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(timeout=5)
        self._link.close()

    def _send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        try:
            socket.send_fds(self._link, [json.dumps(message).encode()], descriptors)
        except OSError as error:
            raise RuntimeFault(
                f"The process that writes checkpoints is gone ({error.strerror}).", code="writer"
            ) from None

    def _listen(self) -> None:
        while True:
            try:
                raw = self._link.recv(_LARGEST_MESSAGE)
            except OSError:
                raw = b""
            if not raw:
                break
            event = json.loads(raw)
            if event["event"] == "idle":
                self._idle.set()
            self._on_event(event)
        lost = not self._idle.is_set()
        self._idle.set()
        if lost:
            self._on_event(
                {"event": "failed", "id": None, "name": None, "code": "writer", "message": "its process ended"}
            )
