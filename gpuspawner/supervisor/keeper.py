"""Keeps one program running: starts it, watches it, starts it again when it dies."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

from gpuspawner.processes import is_same, start_time
from gpuspawner.supervisor.parts import Part

_BACKOFF = (0.2, 0.5, 1.0, 2.0, 5.0)
#: A part that ran this many seconds is taken to have worked; its next restart is quick again.
_SETTLED = 30.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Keeper:
    """One part, its process, its pid file in `run` and its log in `logs`."""

    def __init__(self, part: Part, run: Path, logs: Path) -> None:
        self.part = part
        self.pid_file = PidFile(run / f"{part.name}.pid")
        self.log = logs / f"{part.name}.log"
        self.pid = 0
        self.started = 0
        self.deaths = 0
        self._log_from = 0  # where the newest run's lines begin in the log

    async def keep(self) -> None:
        """Run the part until this task is cancelled; the process is left to `end`."""
        if self.part.stays and (found := self.pid_file.running()):
            self.pid, self.started = found
            await _gone(self.pid)
        quick = 0
        while True:
            began = time.monotonic()
            await self._run()
            self.deaths += 1
            quick = 0 if time.monotonic() - began > _SETTLED else quick + 1
            await asyncio.sleep(_BACKOFF[min(quick, len(_BACKOFF) - 1)])

    async def _run(self) -> None:
        if self.part.socket is not None:
            self.part.socket.unlink(missing_ok=True)  # left by one that was killed
        self._log_from = self.log.stat().st_size if self.log.exists() else 0
        try:
            process = self._popen()
        except OSError as error:
            with self.log.open("a") as log:
                print(f"{self.part.argv[0]} could not be started: {error}", file=log)
            return
        self.pid, self.started = process.pid, start_time(process.pid) or 0
        self.pid_file.write(self.pid, self.started)
        try:
            await _gone(self.pid)
        finally:
            process.poll()

    def _popen(self) -> subprocess.Popen[bytes]:
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        supervisor = os.getpid()

        def with_supervisor() -> None:
            # ends with the supervisor, however that ends
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != supervisor:
                os._exit(1)

        try:
            # not asyncio's own subprocess: that kills its process with the loop, and simulated cards may stay
            return subprocess.Popen(
                self.part.argv,
                env=self.part.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is the supervisor's to hear, and sessions are not in its group
                preexec_fn=None if self.part.stays else with_supervisor,
            )
        finally:
            os.close(output)

    def alive(self) -> bool:
        """Whether its process runs."""
        return is_same(self.pid, self.started)

    async def end(self, within: float = 15.0) -> None:
        """End the process (SIGTERM, after `within` seconds SIGKILL) and forget it."""
        await end_process(self.pid, self.started, within)
        self.pid_file.path.unlink(missing_ok=True)

    def last_lines(self, count: int = 15) -> str:
        """The end of what its newest run wrote into the log."""
        try:
            with self.log.open(errors="replace") as log:
                if self._log_from <= os.fstat(log.fileno()).st_size:  # else it was cut since
                    log.seek(self._log_from)
                return "\n".join(log.read().splitlines()[-count:])
        except OSError:
            return ""


class PidFile:
    """A process remembered as pid and start time, since pids are reused."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, pid: int, started: int) -> None:
        """Remember."""
        new = self.path.with_suffix(".new")
        new.write_text(f"{pid} {started}\n")
        new.replace(self.path)

    def running(self) -> tuple[int, int] | None:
        """(pid, start time) if that process still runs."""
        try:
            pid, started = map(int, self.path.read_text().split())
        except (OSError, ValueError):
            return None
        return (pid, started) if is_same(pid, started) else None


async def end_process(pid: int, started: int, within: float) -> None:
    """End a process that may be anybody's child: SIGTERM, after `within` seconds SIGKILL."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        if not is_same(pid, started):
            return
        os.kill(pid, sig)
        try:
            async with asyncio.timeout(within):
                await _gone(pid)
        except TimeoutError:
            continue


async def _gone(pid: int) -> None:
    """Return when process `pid`, child or not, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
