"""Trainings in processes of their own, which tests kill and start again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"


class Training:
    """A program that runs, started by `Trainings`."""

    def __init__(self, trainings: Trainings, pid: int, output: Path) -> None:
        self._trainings, self.pid, self._output = trainings, pid, output
        self._ended: int | None = None

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def alive(self) -> bool:
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return False
        return state != "Z"

    def send(self, number: int) -> None:
        if self._ended is None and self.alive:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and wait for its end."""
        self.send(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """The status that it ended with; negative is a signal."""
        if self._ended is None:
            self._ended = int(self._trainings.ask({"wait": self.pid}))
        return self._ended


class Trainings:
    """Starts programs; whatever still runs at the end is killed."""

    def __init__(self) -> None:
        root = Path(__file__).parents[2]
        paths = [str(root / "images" / "runtime"), str(root / "tests"), os.environ.get("PYTHONPATH", "")]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        self._lock = threading.Lock()
        self._started: list[Training] = []

    def start(self, program: str, *argv: Any, home: Path, **env: str) -> Training:
        output = home / f"{program}-{len(self._started)}.txt"
        order = {
            "file": str(PROGRAMS / program),
            "argv": [str(each) for each in argv],
            "env": {**self._environment, "HOME": str(home), **env},
            "output": str(output),
        }
        output.touch()
        training = Training(self, int(self.ask(order)), output)
        self._started.append(training)
        return training

    def ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        for training in self._started:
            if training.alive:
                training.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()  # it has nothing to put in order
        self._process.wait(timeout=120)


def lines(log: Path) -> list[dict[str, Any]]:
    """The whole lines that a training has written so far."""
    if not log.exists():
        return []
    found = []
    for line in log.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:  # the process was killed while it wrote
            continue
    return found


def steps(log: Path) -> dict[int, dict[str, Any]]:
    """By step what a training did; of steps that were done again, what was done last."""
    return {line["step"]: line for line in lines(log) if "loss" in line}


def end(log: Path) -> str | None:
    """The fingerprint that a finished training has written."""
    return next((line["end"] for line in lines(log) if "end" in line), None)
