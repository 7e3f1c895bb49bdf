"""Which pod a process is of, by the cgroup that the container runtime put it into."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from pathlib import Path

# kubepods/burstable/pod<uid>/<container>, or with systemd ...-pod<uid, _ for ->.slice
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")


def pod_of(cgroups: str) -> str | None:
    """The uid of the pod in the text of /proc/PID/cgroup; None where it is of none.

    >>> pod_of("4:memory:/kubepods/burstable/pod0e45c7a3-2f0c-4b9b-9d5c-3a1f4f1f8b11/0f3c")
    '0e45c7a3-2f0c-4b9b-9d5c-3a1f4f1f8b11'
    """
    found = _POD.search(cgroups)
    return found.group(1).replace("_", "-") if found else None


class Pods:
    """Tells whose processes are whose. A session lasts from its claim's preparation until it is ended here, whatever
    its processes do: the kubelet starts and ends those. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pods: dict[str, frozenset[str]] = {}
        self._ended: set[str] = set()

    def use(self, session: str, pods: Iterable[str]) -> None:
        """These pods (uids) use a session's claim."""
        with self._lock:
            self._pods[session] = frozenset(pods)

    def forget(self, session: str) -> None:
        """Nothing is left of a session."""
        with self._lock:
            self._pods.pop(session, None)
            self._ended.discard(session)

    def alive(self, folder: Path) -> bool:
        """Whether the session was not ended yet."""
        with self._lock:
            return folder.name not in self._ended

    def was_started(self, folder: Path) -> bool:
        """A kubelet says when a claim is no longer used; nobody looks at processes for that."""
        return False

    def end(self, folder: Path, timeout: float) -> None:
        """The kubelet ends processes; from now on none should be left."""
        with self._lock:
            self._ended.add(folder.name)

    def owners(self, folders: Iterable[Path], pids: Iterable[int]) -> dict[int, Path]:
        """By the uid of the pod in the name of the process's cgroup, which no session can change."""
        with self._lock:
            by_pod = {pod: folder for folder in folders for pod in self._pods.get(folder.name, ())}
        found = {}
        for pid in pids if by_pod else ():
            try:
                pod = pod_of(Path(f"/proc/{pid}/cgroup").read_text(errors="replace"))
            except OSError:
                continue
            if pod in by_pod:
                found[pid] = by_pod[pod]
        return found
