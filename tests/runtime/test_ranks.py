"""Two processes train together: all save at the same step, and another number of them is heeded or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runtime.trainings import Training, Trainings, end, lines, steps
from support.common import until

pytestmark = pytest.mark.timeout(900)


class Group:
    """Trainings of `ddp.py` in one folder."""

    def __init__(self, trainings: Trainings, folder: Path) -> None:
        self.trainings, self.folder, self.rounds = trainings, folder, 0
        folder.mkdir()

    def start(self, world: int, *options: Any) -> list[Training]:
        self.rounds += 1
        meeting = self.folder / f"meeting-{self.rounds}"
        return [
            self.trainings.start("ddp.py", self.folder, rank, world, "--meeting", meeting, *options, home=self.folder)
            for rank in range(world)
        ]

    def log(self, rank: int) -> Path:
        return self.folder / f"log-{rank}"

    def finish(self, world: int, *options: Any) -> None:
        for training in self.start(world, *options):
            assert training.wait() == 0, training.output

    def killed_after(self, step: int, world: int, *options: Any) -> None:
        group = self.start(world, *options)
        until(lambda: max(steps(self.log(0)), default=0) >= step or not group[0].alive, 300)
        for training in group:
            training.kill()


@pytest.mark.case("runtime-7")
def test_both_killed_they_end_as_if_they_never_were(trainings: Trainings, home: Path) -> None:
    reference, group = Group(trainings, home / "reference"), Group(trainings, home / "group")
    reference.finish(2)
    group.killed_after(6, 2)
    group.finish(2)
    assert [line["resumed"] for line in lines(group.log(0)) if "resumed" in line][-1], "it was resumed"
    for rank in (0, 1):
        assert end(group.log(rank)) == end(reference.log(rank)) is not None
        assert steps(group.log(rank)) == steps(reference.log(rank))
    resumed = [lines(group.log(rank)) for rank in (0, 1)]
    assert [line for line in resumed[0] if "resumed" in line] == [line for line in resumed[1] if "resumed" in line]


@pytest.mark.case("runtime-11")
def test_one_instead_of_two_gets_the_rest_of_the_epoch(trainings: Trainings, home: Path) -> None:
    group = Group(trainings, home / "group")
    group.killed_after(6, 2)
    group.finish(1)
    begun = [line for line in lines(group.log(0)) if "resumed" in line][-1]
    assert begun["resumed"]
    done = steps(group.log(0))
    before = [
        number
        for rank in (0, 1)
        for step, line in {**steps(group.log(rank)), **(done if rank == 0 else {})}.items()
        if step <= begun["step"]
        for number in line["samples"]
    ]
    after = [number for step, line in done.items() if step > begun["step"] for number in line["samples"]]
    assert len(before) == 8 * begun["step"]
    assert sorted(before + after) == list(range(96))


@pytest.mark.case("runtime-11")
def test_where_the_rest_cannot_be_divided_it_is_refused(trainings: Trainings, home: Path) -> None:
    group = Group(trainings, home / "group")
    group.killed_after(6, 2, "--plain-sampler")
    training = group.start(1, "--plain-sampler")[0]
    assert training.wait() == 3
    assert lines(group.log(0))[-1] == {"refused": "world_size"}
    assert "Start with 2 processes" in training.output
