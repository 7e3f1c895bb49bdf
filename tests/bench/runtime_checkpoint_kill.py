"""200 trainings that save without pause are killed with kill -9 at a random moment, every second time together with
their writer, half of them while they save under one and the same name. Counts those that leave no checkpoint which
loads and is of one moment, or an older one than was there before."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.bench.runtime_checkpoints import place

_KILLS = 200


def children(pid: int) -> list[int]:
    """The processes that `pid` has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                    found.append(int(entry.name))
    return found


def faulty(step: int, home: Path) -> tuple[int, str | None]:
    """The step of the newest checkpoint, and what is wrong with it."""
    from gpuspawner_runtime.checkpoint.find import load, newest
    from gpuspawner_runtime.checkpoint.store import Store

    found = newest(Store(home / ".local/share/gpuspawner-runtime/checkpoints/killed")).entry
    if found is None:
        return step, None if step == 0 else "there is none"
    tree = load(found, 0)
    saved = tree["state"]["step"]
    if found.step != saved or not all(bool((value == saved).all()) for value in tree["model"].values()):
        return step, f"{found.name} is not of one moment"
    return saved, f"{found.name} is older than {step}" if saved < step else None


def main() -> None:
    """Prints the number of faults."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from runtime.trainings import Trainings

    chance = random.Random(int(os.environ.get("GPUSPAWNER_BENCH_SEED", "1")))
    bad, step = 0, 0
    with place() as home:
        trainings = Trainings()
        log = home / "log"
        for number in range(_KILLS):
            begun = len(log.read_text().splitlines()) if log.exists() else 0
            training = trainings.start("saves.py", log, *(["same"] if number % 2 else []), home=home)
            deadline = time.monotonic() + 120
            while training.alive and (not log.exists() or len(log.read_text().splitlines()) == begun):
                if time.monotonic() > deadline:
                    raise SystemExit(f"a training does not begin: {training.output}")
                time.sleep(0.005)
            time.sleep(chance.uniform(0, 0.25))
            writers = children(training.pid) if number % 4 < 2 else []
            if not training.alive:
                raise SystemExit(f"a training ended by itself: {training.output}")
            training.send(signal.SIGKILL)
            for pid in writers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            training.wait()
            step, fault = faulty(step, home)
            if fault is not None:
                bad += 1
                print(f"kill {number}: {fault}")
        trainings.end()
    print(f"{_KILLS} kills, {step} steps survived; seed {os.environ.get('GPUSPAWNER_BENCH_SEED', '1')}")
    print(f"{bad} faults")


if __name__ == "__main__":
    main()
