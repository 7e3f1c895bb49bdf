"""When the next checkpoint is due: by what one costs and how often runs are killed, and never too late."""

from __future__ import annotations

import time

import pytest
import torch
from gpuspawner_runtime import autocheckpoint
from gpuspawner_runtime.checkpoint.interval import LONGEST, SHORTEST, Pace, interval, mean_time_between_failures

HOUR = 3600.0


def waste(pause: float, cost: float, between: float) -> float:
    """The part of the time that goes into checkpoints and into work that is lost, to first order."""
    return cost / pause + pause / (2 * between)


@pytest.mark.parametrize("cost", [0.005, 0.05, 0.4])
@pytest.mark.parametrize("between", [0.2 * HOUR, HOUR, 24 * HOUR])
def test_no_other_interval_wastes_less(cost: float, between: float) -> None:
    best = interval(cost, 0.0, between)
    if SHORTEST < best < LONGEST:
        assert all(waste(best, cost, between) <= waste(best * other, cost, between) for other in (0.5, 0.9, 1.1, 2.0))
    assert interval(0.05, 0.0, 24 * HOUR) == pytest.approx(92.95, abs=0.01)


def test_it_is_never_above_ten_minutes_and_never_before_the_last_one_is_durable() -> None:
    assert interval(60.0, 0.0, 1000 * HOUR) == 600.0
    assert interval(0.01, 20.0, HOUR) == 40.0
    assert interval(0.0, 0.0, HOUR) == SHORTEST


def test_runs_that_are_killed_more_often_are_saved_more_often() -> None:
    pauses = [interval(0.05, 0.0, mean_time_between_failures(10 * HOUR, failures)) for failures in range(6)]
    assert pauses == sorted(pauses, reverse=True)
    assert mean_time_between_failures(0.0, 0) == 24 * HOUR, "one a day, as long as nothing is known"
    assert mean_time_between_failures(10_000 * HOUR, 9_999) == pytest.approx(HOUR, rel=0.01)


def test_a_run_plans_by_what_its_checkpoints_have_cost() -> None:
    with autocheckpoint("planned", model=torch.nn.Linear(4, 4)) as saver:
        saver.step()
        saver.save(wait=True)
        soon = saver.next_due - time.monotonic()
        for _ in range(5):  # as if each had cost five minutes
            saver._pace.stalled(300.0)
            saver._pace.pause(0.0, 0)
        saver.step()
        saver.save(wait=True)
        late = saver.next_due - time.monotonic()
    assert soon < late <= LONGEST
    assert late > LONGEST - 60


def test_what_updates_wait_for_a_copy_counts_with_the_copy() -> None:
    pace = Pace(None)
    pace.stalled(0.5)
    pace.stalled(1.5)
    assert pace.pause(10 * HOUR, 0) == interval(2.0, 0.0, mean_time_between_failures(10 * HOUR, 0))
    assert pace.pause(10 * HOUR, 0) == interval(1.0, 0.0, mean_time_between_failures(10 * HOUR, 0)), "counted once"
