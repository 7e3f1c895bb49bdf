"""Programs that compute without end on simulated cards in timed mode, and what they get of a card."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuspawner.node.limits import abi, build
from gpuspawner.simulation import SimulatedCards
from gpuspawner.simulation.build import BIN

HERE = Path(__file__).parent
MEMORY = 8 << 30


def compiled(folder: Path) -> Path:
    """The program of compute.c, built in `folder`."""
    program = folder / "compute"
    subprocess.run(["cc", "-O1", "-o", program, HERE / "compute.c", "-ldl"], check=True)
    return program


class Group:
    """Processes with one budget: those of a session, without its namespace."""

    def __init__(self, ground: Ground, folder: Path, environment: dict[str, str]) -> None:
        self._ground = ground
        self.folder = folder
        self.environment = environment
        self.processes: list[subprocess.Popen[str]] = []
        abi.create_usage(folder / "usage")

    def limit(self, *parts: tuple[int, int], burst: bool = False, compute: int | None = None) -> None:
        """(eighths, where its turn begins in thousandths of the period) for each card, by index."""
        abi.write_limits(
            self.folder / "limit",
            [
                abi.CardLimit(uuid, eighths, MEMORY, burst=burst, compute=compute, compute_from=start)
                for uuid, (eighths, start) in zip(self._ground.uuids, parts, strict=False)
            ],
        )

    def load(self, microseconds: int, how: str = "plain", device: int = 0, **environment: str) -> subprocess.Popen[str]:
        """A process that computes from now on; returned when its first kernel has run."""
        with (self.folder / f"errors-{len(self.processes)}").open("w") as errors:
            process = subprocess.Popen(
                [self._ground.program, str(microseconds), how, str(device)],
                env=self.environment | environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", self.errors()
        return process

    def errors(self) -> list[str]:
        """What its processes said."""
        return [line for path in sorted(self.folder.glob("errors-*")) for line in path.read_text().splitlines()]

    def end(self) -> None:
        """Kill all of them."""
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self.processes.clear()


class Ground:
    """Simulated cards whose kernels take time, and groups of processes behind the shim."""

    def __init__(self, folder: Path, cards: SimulatedCards, driver: Path = BIN / "libcuda.so.1") -> None:
        self.folder = folder
        self.cards = cards
        self.program = compiled(folder)
        self._shim = build.host_flavour(build.DriverFiles(driver, BIN / "libnvidia-ml.so.1"), folder / "shim")
        self.uuids = [card["uuid"] for card in self.state()["cards"]]
        self.groups: list[Group] = []

    def group(self) -> Group:
        """A new session's worth of processes."""
        folder = self.folder / str(len(self.groups))
        folder.mkdir()
        environment = os.environ | self.cards.env()
        environment |= {
            "LD_LIBRARY_PATH": str(self._shim),
            "GPUSPAWNER_LIMITS": str(folder / "limit"),
            "GPUSPAWNER_USAGE": str(folder / "usage"),
        }
        self.groups.append(Group(self, folder, environment))
        return self.groups[-1]

    def state(self) -> dict[str, Any]:
        """What the device itself says."""
        with self.cards.connect() as control:
            return control.state()

    def busy(self, groups: Sequence[Group], card: int = 0) -> tuple[int, list[int]]:
        """The device's clock, and how long each group has had the card until then, both in nanoseconds."""
        state = self.state()
        by_process = {row["pid"]: row["busy_ns"] for row in state["processes"] if row["card"] == card}
        return state["clock_ns"], [sum(by_process.get(p.pid, 0) for p in group.processes) for group in groups]

    def shares(self, groups: Sequence[Group], seconds: float = 1.0, card: int = 0) -> list[float]:
        """Percent of the card that each group had during `seconds`, by the device's clock."""
        before, had = self.busy(groups, card)
        time.sleep(seconds)
        after, has = self.busy(groups, card)
        return [100 * (b - a) / (after - before) for a, b in zip(had, has, strict=True)]


@contextmanager
def ground(folder: Path, cards: str = "1*h100-80gb", driver: Path = BIN / "libcuda.so.1") -> Iterator[Ground]:
    """`cards` in timed mode for as long as the block lasts; every process started on them is killed at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    with SimulatedCards(cards, timed=True) as running:
        made = Ground(folder, running, driver)
        try:
            yield made
        finally:
            for group in made.groups:
                group.end()
