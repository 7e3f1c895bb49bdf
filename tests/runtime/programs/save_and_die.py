"""Save a checkpoint and be killed at the N-th step of it that the disk sees: save_and_die.py FOLDER NAME SERIAL N

The bytes of the checkpoint are its serial, so that a reader can tell what it should hold. Ends with 0 if N is larger
than the number of such steps.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from gpuspawner_runtime.checkpoint.writer import Writer

folder, name, serial, deadly = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
SIZE = 300_000
count = 0


def counted(function: Any) -> Any:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        global count
        count += 1
        if count == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)

    return wrapped


for place, names in ((os, ("fsync", "open", "write")), (Path, ("open", "mkdir", "rename", "unlink", "touch"))):
    for each in names:
        setattr(place, each, counted(getattr(place, each)))

mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
writer = Writer(theirs)
writer.memory = mmap.mmap(-1, SIZE)
writer.memory[:] = bytes([serial % 256]) * SIZE
half = SIZE // 2
writer._save(
    {
        "id": 1,
        "run": "test",
        "folder": folder,
        "name": name,
        "token": f"{serial:08x}",
        "serial": serial,
        "step": serial,
        "world": 1,
        "rank": 0,
        "keep": 2,
        "url": None,
        "trained": 1.0,
        "failures": 0,
        "torn": False,
        "parts": [
            {"name": "rank-0.safetensors", "begin": 0, "bytes": half},
            {"name": "rank-0.pt", "begin": half, "bytes": SIZE - half},
        ],
    }
)
os._exit(0)  # the end of the interpreter is no part of a save
