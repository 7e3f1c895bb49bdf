"""A training that is killed and started again is the training that was never killed, bit for bit."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest
from runtime.models import MODELS
from runtime.trainings import Trainings, end, lines, steps
from support.common import until

pytestmark = pytest.mark.timeout(900)


def finish(trainings: Trainings, home: Path, model: str, log: Path, *options: Any) -> None:
    training = trainings.start("train.py", model, log, *options, home=home)
    assert training.wait() == 0, training.output


def killed(trainings: Trainings, home: Path, model: str, log: Path, after: int, *options: Any) -> None:
    """Start a training and kill it once it has done `after` steps more than all before."""
    had = max(steps(log), default=0)
    training = trainings.start("train.py", model, log, *options, home=home)
    until(lambda: max(steps(log), default=0) >= had + after or not training.alive, 120)
    assert training.alive, training.output
    training.kill()


def compare(log: Path, reference: Path, samples: int, epochs: int) -> None:
    assert end(log) == end(reference) is not None
    done, expected = steps(log), steps(reference)
    assert done == expected
    for epoch in range(epochs):
        seen = [number for line in done.values() if line["epoch"] == epoch for number in line["samples"]]
        assert sorted(seen) == list(range(samples))


@pytest.mark.case("runtime-7")
@pytest.mark.parametrize("model", MODELS)
def test_killed_at_random_it_ends_as_if_it_never_was(model: str, trainings: Trainings, home: Path) -> None:
    chance = random.Random(model)
    options = ("--samples", 48, "--every", 0.05, "--pause", 0.01)
    reference, log = home / "reference.log", home / "killed.log"
    other = home / "other"
    other.mkdir()
    finish(trainings, other, model, reference, *options)
    killed(trainings, home, model, log, chance.randint(2, 10), *options)
    reached = max(steps(log))
    finish(trainings, home, model, log, *options)
    compare(log, reference, samples=48, epochs=2)
    begun = [line for line in lines(log) if "resumed" in line]
    assert begun[0]["lost"] == 0
    # the line of a step is there before the step is done
    assert begun[1]["lost"] in (reached - begun[1]["step"], reached - 1 - begun[1]["step"])


@pytest.mark.case("runtime-7")
@pytest.mark.parametrize("options", [("--workers", 2), ("--accumulate", 3), ("--compile",)], ids=lambda o: o[0][2:])
def test_three_resumes_in_one_epoch_with(options: tuple[Any, ...], trainings: Trainings, home: Path) -> None:
    options = (*options, "--samples", 100, "--every", 0.05, "--epochs", 1, "--pause", 0.02)
    reference, log = home / "reference.log", home / "killed.log"
    other = home / "other"
    other.mkdir()
    finish(trainings, other, "bert", reference, *options)
    for after in (5, 4, 6):
        killed(trainings, home, "bert", log, after, *options)
    finish(trainings, home, "bert", log, *options)
    assert len([line for line in lines(log) if line.get("resumed")]) >= 2
    compare(log, reference, samples=100, epochs=1)


@pytest.mark.case("runtime-5")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_it_saves_first(number: int, trainings: Trainings, home: Path) -> None:
    reference, log = home / "reference.log", home / "asked.log"
    other = home / "other"
    other.mkdir()
    options = ("--every", 600, "--samples", 60, "--epochs", 1, "--pause", 0.02)
    finish(trainings, other, "gpt", reference, *options)
    training = trainings.start("train.py", "gpt", log, *options, home=home)
    until(lambda: len(steps(log)) >= 6, 120)
    training.send(number)
    status = training.wait()
    assert status == -number, training.output
    stopped = max(steps(log))
    finish(trainings, home, "gpt", log, *options)
    again = lines(log)[
        [each.get("resumed", "") is not None and "resumed" in each for each in lines(log)].index(True, 1)
    ]
    assert again["step"] in (stopped, stopped - 1)
    compare(log, reference, samples=60, epochs=1)
