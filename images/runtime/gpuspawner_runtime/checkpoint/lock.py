"""One process at a time trains a run: who does holds the lock of its folder, and so does its writer."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from gpuspawner_runtime.errors import RuntimeFault

#: Seconds that the writer of a process that was killed may take to finish.
WRITER_DEADLINE = 600.0
#: Seconds for a process that is just ending.
_MOMENT = 10.0


class RunLock:
    """Held from `RunLock(folder, run)` until `release`, and as long as a process lives that it was handed to."""

    def __init__(self, folder: Path, run: str) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RuntimeFault(
                f"store: {folder} cannot be written ({error.strerror}). Give run(..., store=...) a folder that can.",
                code="store",
                field="store",
                given=str(folder),
            ) from None
        try:
            self._take(run)
        except BaseException:
            os.close(self.descriptor)
            raise
        with contextlib.suppress(OSError):  # only for people: a full disk is told when it comes to saving
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, str(os.getpid()).encode(), 0)
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._leave)

    def _take(self, run: str) -> None:
        began = time.monotonic()
        told = False
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass
            holder = os.pread(self.descriptor, 32, 0).decode("ascii", "replace")
            lives = holder.isdigit() and Path(f"/proc/{holder}").exists()
            waited = time.monotonic() - began
            if waited > (_MOMENT if lives else WRITER_DEADLINE):
                raise RuntimeFault(
                    f"The run {run!r} is being trained by process {holder or 'unknown'}. End that one, or give this "
                    "run another name.",
                    code="in_use",
                    field="name",
                    given=run,
                )
            if not told and waited > 1:
                told = True
                print(f"{run}: waiting for the process {holder} that trained it before")
            time.sleep(0.05)

    def _leave(self) -> None:
        # a worker of a data loader lives on for a while when the training is killed: it must not hold the run
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)
            self.descriptor = -1

    def release(self) -> None:
        if self.descriptor >= 0 and self._pid == os.getpid():
            os.close(self.descriptor)
            self.descriptor = -1
