"""The control commands of a daemon: script faults and readings, read its state.

They have a socket of their own beside that of the cards, open to root and the daemon's own user only. Sessions never
see it. The daemon also asks the kernel who is calling.
"""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_MAGIC = 0x4D495347
_CONTROL = 8
_REQUEST = struct.Struct("=4I2Q")
_REPLY = struct.Struct("=IiQ")
_LONGEST_COMMAND = 4096
_LONGEST_REPLY = 1 << 17

#: The control socket's name is that of the cards' socket and this.
SUFFIX = ".control"

#: Metrics that can be made unsupported; the names of the readings to `set` come from the daemon's own message.
METRICS = (
    "utilization",
    "power",
    "energy",
    "temperature",
    "clocks",
    "fan",
    "ecc",
    "pcie",
    "nvlink",
    "processes",
    "memory",
    "xid",
    "memory-limits",
)


def control_socket(path: str | Path) -> Path:
    """Where the daemon whose cards' socket is at `path` takes control commands."""
    return Path(f"{path}{SUFFIX}")


class ControlError(RuntimeError):
    """The daemon refused a command; the message names the field, what was given and what is allowed."""


class Control:
    """A connection for control commands. Use as a context manager, or `close()` it."""

    def __init__(self, path: str | Path, timeout: float = 10.0) -> None:
        """Connect to the daemon whose cards' socket is at `path`; `timeout` is in seconds, for every call.

        Raises OSError.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(str(control_socket(path)))
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def command(self, *words: object) -> str:
        """Send one command, such as `("set", 0, "temperature", 91)`, and return the answer's text (often empty).

        Raises `ControlError` when it is refused and `ConnectionError` when the daemon goes away.
        """
        line = " ".join(str(word) for word in words).encode()
        if len(line) > _LONGEST_COMMAND:
            raise ControlError(f"command: got {len(line)} bytes; allowed are {_LONGEST_COMMAND}")
        self._socket.sendall(_REQUEST.pack(_MAGIC, _CONTROL, 0, 0, 0, 0) + line)
        answer = self._socket.recv(_LONGEST_REPLY)
        if len(answer) < _REPLY.size:
            raise ConnectionError("the simulated cards' daemon has gone")
        _, status, _ = _REPLY.unpack(answer[: _REPLY.size])
        text = answer[_REPLY.size :].decode()
        if status:
            raise ControlError(text or f"refused with status {status}")
        return text

    def state(self) -> dict[str, Any]:
        """Cards with their memory (bytes), and the processes that hold some."""
        read: dict[str, Any] = json.loads(self.command("state"))
        return read

    def set(self, card: int, reading: str, value: object) -> None:
        """Set a reading, such as ("temperature", 91); power, load, temperature and clocks take "auto" to go back."""
        self.command("set", card, reading, value)

    def set_link(self, card: int, link: int, reading: str, value: int) -> None:
        """Set a reading of one NVLink: up, tx-kib, rx-kib, replays, recoveries, crc-errors."""
        self.command("link", card, link, reading, value)

    def xid(self, card: int, code: int) -> None:
        """Report an XID error of the card."""
        self.command("xid", card, code)

    def lose(self, card: int) -> None:
        """Let the card fall off the bus (XID 79 follows); `restore` brings it back."""
        self.command("lose", card)

    def restore(self, card: int) -> None:
        self.command("restore", card)

    def unsupported(self, card: int, metric: str) -> None:
        """Let NVML answer "not supported" for a metric, one of `METRICS`."""
        self.command("unsupported", card, metric)

    def supported(self, card: int, metric: str) -> None:
        self.command("supported", card, metric)

    def quit_when_unused(self) -> None:
        """Let the daemon end once nobody, this connection included, is connected."""
        self.command("quit-when-unused")


def control(path: str | Path, *words: object) -> str:
    """One command to the daemon at `path`. Raises as `Control` and `Control.command` do."""
    with Control(path) as connection:
        return connection.command(*words)
