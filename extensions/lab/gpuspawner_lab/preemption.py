"""Saves this server's kernels when more urgent work needs its share, and brings them back when it is started again.

The node shows a notice in a file (`GPUSPAWNER_PREEMPTION_FILE`). Kernels between two cells are parked by the runtime;
of those that compute, the run has to write a checkpoint after the notice, which the runtime does by itself at the end
of its step. Only where all are saved the service is told so, and stops the server; else it is told why not.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .activity import foreground
from .checkpoints import RunsFolder
from .holders import kernel_states, parent_of
from .kernel_state import KernelProblem, ask_kernel
from .service import ServiceError, ServiceUnavailable

if TYPE_CHECKING:
    from logging import Logger

    from jupyter_server.serverapp import ServerApp

LOOK_SECONDS = 1.0
_LARGEST = 4096
#: Seconds of the time that a notice gives which are left for the answer; and a kernel's to come back.
_FOR_ANSWER, _COMES_BACK = 2.0, 120.0
_DEEPEST = 64
_FORMAT = 1

Send = Callable[[str, bool, str], Awaitable[object]]


@dataclass(frozen=True)
class Notice:
    """What the file says. `seen`: when it was written, `due`: until when to save; seconds since the epoch."""

    id: str
    seen: float
    due: float


@dataclass(frozen=True)
class SavedKernel:
    """A kernel that was parked under `name`; `path` and `type` of the notebook or console that has it, if any."""

    kernel_id: str
    kernel_name: str
    name: str
    path: str | None = None
    title: str | None = None
    type: str | None = None


class Unsaved(Exception):
    """Why something could not be saved, as a sentence."""


class PreemptionWatch:
    """Looks at the notice every second. `send` takes the notice's id, whether all is saved, and what or why not."""

    def __init__(self, server: ServerApp, runs: RunsFolder, file: Path, folder: Path, send: Send, log: Logger) -> None:
        self._server = server
        self._runs = runs
        self._file = file
        self._list = folder / f"server-{_own_name()}.json"
        self._send = send
        self._log = log
        self._answered = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Bring back what was parked, and look from now on, in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        await self._bring_back()
        while True:
            try:
                await self._look()
            except Exception:
                self._log.exception("gpuspawner: a notice could not be followed")
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        notice = read_notice(self._file)
        if notice is None:
            if self._answered:  # it is void, and what was saved for it is of no use any more
                self._answered = ""
                self._forget()
            return
        if notice.id == self._answered:
            return
        try:
            said, saved = await self._save(notice), True
        except Unsaved as problem:
            said, saved = str(problem), False
        if not saved:
            self._forget()
        self._log.info("gpuspawner: asked to save for more urgent work: %s", said)
        await self._answer(notice, saved, said)
        self._answered = notice.id

    async def _answer(self, notice: Notice, saved: bool, said: str) -> None:
        """Tell the service, again and again while it does not answer and the notice stands."""
        while True:
            try:
                await self._send(notice.id, saved, said[:1000])
            except ServiceUnavailable:
                current = read_notice(self._file)
                if current is not None and current.id == notice.id:
                    await asyncio.sleep(LOOK_SECONDS)
                    continue
            except ServiceError as error:
                self._log.info("gpuspawner: the service says: %s", error)
            return

    # -- saving ----------------------------------------------------------------------------------------

    async def _save(self, notice: Notice) -> str:
        """Save everything; what was saved, for people. Raises Unsaved."""
        kernels = self._server.kernel_manager
        states = kernel_states(kernels)
        opened = {each["kernel"]["id"]: each for each in await self._server.session_manager.list_sessions()}
        computing = [(kernel, pid) for kernel, pid, state in states if state == "busy"]
        programs = self._programs()
        still = [kernel for kernel, _, state in states if state != "busy"]
        parked = await asyncio.gather(
            *(self._park(kernel, opened.get(kernel, {}), _left(notice)) for kernel in still), return_exceptions=True
        )
        kept = [each for each in parked if isinstance(each, SavedKernel)]
        await asyncio.to_thread(self._write, kept)  # first, so that it is known what to forget
        for each in parked:
            if isinstance(each, BaseException):
                raise each if isinstance(each, Unsaved) else Unsaved(f"{type(each).__name__}: {each}")
        runs = await self._saved_runs(notice, [*computing, *programs])
        words = [f"{len(kept)} kernel{'s'[: len(kept) != 1]}"] if kept else []
        words += [f"run {run}" for run in runs]
        return ", ".join(words) or "nothing runs"

    async def _park(self, kernel: str, opened: dict[str, Any], patience: float) -> SavedKernel:
        manager = self._server.kernel_manager.get_kernel(kernel)
        name = f"preempted-{kernel}"[:100]
        try:
            await ask_kernel(manager, "save", name, patience)
        except KernelProblem as problem:
            who = opened.get("path") or f"kernel {kernel[:8]}"
            raise Unsaved(f"{who}: {problem}") from problem
        return SavedKernel(
            kernel, str(manager.kernel_name), name, opened.get("path"), opened.get("name"), opened.get("type")
        )

    def _programs(self) -> list[tuple[str, int | None]]:
        """What runs in terminals: a name, and the pid of the group in the foreground."""
        manager = self._server.web_app.settings.get("terminal_manager")
        terminals = dict(getattr(manager, "terminals", {}))
        return [(f"terminal {name}", pid) for name, each in terminals.items() if (pid := foreground(each)) is not None]

    async def _saved_runs(self, notice: Notice, computing: list[tuple[str, int | None]]) -> list[str]:
        """The runs of all that computes, once each has a checkpoint from after the notice. Raises Unsaved."""
        while computing:
            found = [
                (run["run"], run["pid"]) for run in await asyncio.to_thread(self._runs.runs) if _is_fresh(run, notice)
            ]
            missing = [name for name, pid in computing if not any(_below(run_pid, pid) for _, run_pid in found)]
            if not missing:
                return [name for name, _ in found]
            current = await asyncio.to_thread(read_notice, self._file)
            if current is None or current.id != notice.id:
                raise Unsaved("the notice is void")
            if _left(notice) <= 0:
                raise Unsaved(f"{missing[0][:20]}: it computes, and wrote no checkpoint in time")
            await asyncio.sleep(0.2)
        return []

    # -- what is kept ----------------------------------------------------------------------------------

    def _write(self, kept: list[SavedKernel]) -> None:
        self._list.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = self._list.with_suffix(".partial")
        partial.write_text(json.dumps({"format": _FORMAT, "kernels": [asdict(each) for each in kept]}))
        partial.rename(self._list)

    def _read(self) -> list[SavedKernel]:
        try:
            read = json.loads(self._list.read_text())
            return [SavedKernel(**each) for each in read["kernels"]] if read["format"] == _FORMAT else []
        except (OSError, ValueError, TypeError, KeyError):
            return []

    def _forget(self) -> None:
        for each in self._read():
            with contextlib.suppress(OSError):
                (self._list.parent / f"{each.name}.parked").unlink()
        with contextlib.suppress(OSError):
            self._list.unlink()

    async def _bring_back(self) -> None:
        """Start the kernels that were parked, with their ids and notebooks. Tried once: what fails stays as a file,
        for `unpark`."""
        kept = self._read()
        with contextlib.suppress(OSError):
            self._list.unlink()
        for each in kept:
            try:
                await self._bring_back_one(each)
                self._log.info("gpuspawner: %s is back", each.path or each.kernel_id)
            except Exception as error:
                self._log.warning(
                    "gpuspawner: kernel %s is not back; in a notebook, unpark(%r) tries again: %s",
                    each.kernel_id,
                    each.name,
                    error,
                )

    async def _bring_back_one(self, each: SavedKernel) -> None:
        kernels, sessions = self._server.kernel_manager, self._server.session_manager
        more: dict[str, Any] = {}
        if each.path is not None:
            more["path"] = await sessions.contents_manager.get_kernel_path(path=each.path)
            more["env"] = sessions.get_kernel_env(each.path, each.title)
        await kernels.start_kernel(kernel_id=each.kernel_id, kernel_name=each.kernel_name, **more)
        await ask_kernel(kernels.get_kernel(each.kernel_id), "restore", each.name, _COMES_BACK)
        if each.path is not None:
            await sessions.create_session(
                path=each.path,
                name=each.title,
                type=each.type,
                kernel_name=each.kernel_name,
                kernel_id=each.kernel_id,
            )


def read_notice(file: Path) -> Notice | None:
    """The notice that is shown; None where there is none, or what is there is not understood."""
    try:
        with file.open("rb") as opened:
            seen = os.fstat(opened.fileno()).st_mtime
            read = json.loads(opened.read(_LARGEST))
        if read["format"] != _FORMAT or not isinstance(read["notice"], str):
            return None
        return Notice(read["notice"], seen, datetime.fromisoformat(read["due"]).timestamp())
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _left(notice: Notice) -> float:
    return notice.due - time.time() - _FOR_ANSWER


def _is_fresh(run: dict[str, Any], notice: Notice) -> bool:
    """Whether a run wrote a checkpoint after the notice, that was not found wrong."""
    for row in run["checkpoints"]:
        if row["saved"] is not None and row["verified"] is not False:
            saved = datetime.fromisoformat(row["saved"]).astimezone(UTC).timestamp()
            if saved >= notice.seen:
                return bool(run["status"] == "running")
    return False


def _below(pid: int | None, above: int | None, proc: Path = Path("/proc")) -> bool:
    """Whether process `pid` is `above` or was started below it."""
    for _ in range(_DEEPEST):
        if pid is None or above is None or pid <= 1:
            return False
        if pid == above:
            return True
        pid = parent_of(pid, proc)
    return False


def _own_name() -> str:
    """A file's name for this server among those of its user."""
    return hashlib.sha256(os.environ.get("JUPYTERHUB_SERVER_NAME", "").encode()).hexdigest()[:16]
