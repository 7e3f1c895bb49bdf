"""`%gpu processes`: which process of this session holds how much card memory, and which notebook it belongs to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .holders import command, parent_of, printable
from .shares import gib
from .table import Table

_DEEPEST = 64
_CONNECTION_FILE = re.compile(r"kernel-([0-9A-Za-z_-]{1,64})\.json\Z")


@dataclass(frozen=True)
class Owner:
    """What is known of a process: the program, and the kernel and notebook above it."""

    command: str
    kernel: str | None = None
    notebook: str | None = None


def table(held: Iterable[tuple[int, int | None]], proc: Path = Path("/proc")) -> Table:
    """The driver's pids and bytes as a table, the largest first; unknown is a dash."""
    rows = []
    for pid, size in sorted(held, key=lambda each: (-(each[1] or 0), each[0])):
        owner = owner_of(pid, proc)
        own = " (this kernel)" if pid == os.getpid() else ""
        kernel = "–" if owner.kernel is None else owner.kernel[:8]
        rows.append(
            (
                str(pid),
                gib(size) if size is not None else "–",
                kernel + own,
                owner.notebook or "–",
                owner.command,
            )
        )
    if not rows:
        return Table("No process of this session holds card memory.", ("pid",), ())
    return Table(
        "Processes that hold card memory",
        ("pid", "GiB", "kernel", "notebook", "command"),
        tuple(rows),
        frozenset({0, 1}),
    )


def owner_of(pid: int, proc: Path = Path("/proc")) -> Owner:
    """Look a process up. What cannot be read, since it ended or is another's, is None."""
    named = command(pid, proc)
    for _ in range(_DEEPEST):
        kernel = next((found[1] for word in _words(pid, proc) if (found := _CONNECTION_FILE.search(word))), None)
        if kernel is not None:
            return Owner(named, kernel, _notebook(pid, proc))
        pid = parent_of(pid, proc)
        if pid <= 1:
            break
    return Owner(named)


def _words(pid: int, proc: Path) -> list[str]:
    try:
        with (proc / str(pid) / "cmdline").open("rb") as file:
            return file.read(8192).decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _notebook(pid: int, proc: Path) -> str | None:
    """The notebook's path, as the Jupyter server tells it to the kernels it starts."""
    try:
        with (proc / str(pid) / "environ").open("rb") as file:
            entries = file.read(1 << 20).split(b"\0")
    except OSError:
        return None
    value = next((entry[17:] for entry in entries if entry.startswith(b"JPY_SESSION_NAME=")), b"")
    return printable(PurePosixPath(value.decode(errors="replace")).name) or None
