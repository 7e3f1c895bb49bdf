"""Which kernel, and so which notebook, holds the session's card memory: the driver's pids, brought to kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

#: Steps up the tree of processes before a pid is said to belong to no kernel.
_DEEPEST = 64
_LONGEST_NAME = 120


class _Kernels(Protocol):
    def list_kernel_ids(self) -> list[str]: ...
    def get_kernel(self, kernel_id: str) -> Any: ...


@dataclass(frozen=True)
class Holder:
    """A kernel, or a process outside of any, with the pids below it that the driver shows."""

    kind: str
    """`kernel` or `process`."""
    title: str
    """The notebook's name, or the program's."""
    pids: tuple[int, ...]
    path: str | None = None
    kernel_id: str | None = None
    kernel_name: str | None = None
    session_id: str | None = None
    """Of Jupyter's sessions API, not of gpuspawner."""
    state: str | None = None
    """The kernel's: idle, busy, starting, dead."""

    def shown(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "pids": list(self.pids)}


def kernel_states(kernels: _Kernels) -> tuple[tuple[str, int | None, str | None], ...]:
    """Id, pid and state of every kernel. The pid is None where a kernel runs elsewhere."""
    found = []
    for kernel_id in kernels.list_kernel_ids():
        try:
            kernel = kernels.get_kernel(kernel_id)
        except KeyError:  # ended between the two calls
            continue
        pid = getattr(getattr(kernel, "provisioner", None), "pid", None)
        found.append((kernel_id, pid if isinstance(pid, int) else None, getattr(kernel, "execution_state", None)))
    return tuple(found)


def find_holders(
    pids: Iterable[int],
    kernels: _Kernels,
    sessions: Iterable[Mapping[str, Any]],
    proc: Path = Path("/proc"),
) -> list[Holder]:
    """Every kernel with the pids below it, kernels that hold some first, then processes of no kernel."""
    states = kernel_states(kernels)
    by_pid = {pid: kernel_id for kernel_id, pid, _ in states if pid is not None}
    below: dict[str, list[int]] = {}
    others: list[int] = []
    for pid in sorted(set(pids)):
        kernel_id = _kernel_above(pid, by_pid, proc)
        (others if kernel_id is None else below.setdefault(kernel_id, [])).append(pid)
    opened = {session["kernel"]["id"]: session for session in sessions if session.get("kernel")}
    found = []
    for kernel_id, _, state in states:
        session = opened.get(kernel_id, {})
        path = str(session.get("path") or "")[: 4 * _LONGEST_NAME]
        name = str(getattr(kernels.get_kernel(kernel_id), "kernel_name", "") or "") or None
        found.append(
            Holder(
                kind="kernel",
                title=printable(str(session.get("name") or PurePosixPath(path).name or f"kernel {kernel_id[:8]}")),
                pids=tuple(below.get(kernel_id, ())),
                path=path or None,
                kernel_id=kernel_id,
                kernel_name=name,
                session_id=session.get("id"),
                state=state,
            )
        )
    found.sort(key=lambda holder: (not holder.pids, holder.title))
    return found + [Holder(kind="process", title=command(pid, proc), pids=(pid,)) for pid in others]


def command(pid: int, proc: Path = Path("/proc")) -> str:
    """The program and its first word, `python train.py`. Later words may be secrets and are left out."""
    try:
        with (proc / str(pid) / "cmdline").open("rb") as file:
            words = file.read(4096).decode(errors="replace").split("\0")
    except OSError:
        words = []
    named = [PurePosixPath(word).name for word in words[:2] if word and not word.startswith("-")]
    return printable(" ".join(named)) or f"process {pid}"


def _kernel_above(pid: int, by_pid: Mapping[int, str], proc: Path) -> str | None:
    for _ in range(_DEEPEST):
        if pid in by_pid:
            return by_pid[pid]
        if pid <= 1:
            return None
        pid = parent_of(pid, proc)
    return None


def parent_of(pid: int, proc: Path) -> int:
    """The parent's pid; 0 if there is none, or the process has ended."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return 0
    # The name in parentheses may hold anything, parentheses and spaces included.
    fields = stat.rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0


def printable(text: str) -> str:
    """Text of a process or file, without what a terminal would obey, and cut to a readable length."""
    cleaned = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return cleaned if len(cleaned) <= _LONGEST_NAME else cleaned[:_LONGEST_NAME] + "…"
