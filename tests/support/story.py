"""Stateful tests on one real machine that is the same for all stories: steps until the time is over, and the first
failure kept as it was."""

from __future__ import annotations

import contextlib
import functools
import os
import time
import traceback
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

_SECONDS = "GPUSPAWNER_SOAK_SECONDS"
SOAK = _SECONDS in os.environ


def seconds(otherwise: float) -> float:
    """How long the stories go on: what a soak test was told, or so long otherwise."""
    return float(os.environ.get(_SECONDS, otherwise))


class Story(RuleBasedStateMachine):
    """One story. `repeats`: whether a step may follow itself; hypothesis begins with the simplest story, which is one
    step again and again."""

    repeats = True
    until_time = 0.0
    failure = ""

    def __init__(self) -> None:
        super().__init__()
        self.story: list[str] = []

    @classmethod
    def over(cls) -> bool:
        """Whether no more steps are taken."""
        return time.monotonic() > cls.until_time

    @contextlib.contextmanager
    def remembered(self) -> Iterator[None]:
        """Keep the first failure with its story. Hypothesis would live it again to be sure, which takes other turns
        where processes race; after it the time is over."""
        cls = type(self)
        try:
            yield
        except BaseException:
            if not cls.failure:
                cls.failure = "\n".join(["the steps:", *self.story, "", traceback.format_exc()])
            cls.until_time = 0.0
            raise

    @classmethod
    def tell(cls, limit: float, stories: int, steps: int) -> None:
        """Live that many stories of so many steps, in a soak test again and again, for `limit` seconds. AssertionError
        with the story where one went wrong."""
        cls.failure, cls.until_time = "", time.monotonic() + limit
        how = settings(
            max_examples=stories,
            stateful_step_count=steps,
            derandomize=not SOAK,
            database=None,
            deadline=None,
            # a shorter story would be nice, but every try of one takes as long as the first
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        try:
            run_state_machine_as_test(cls, settings=how)
            while SOAK and not cls.over():
                run_state_machine_as_test(cls, settings=how)
        except BaseException:
            if not cls.failure:
                raise
        assert not cls.failure, cls.failure


def step(**drawn: Any) -> Any:
    """A rule that does nothing once the time is over: which rules there are may not depend on the time."""

    def wrap(function: Any) -> Any:
        @functools.wraps(function)
        def in_time(self: Story, **values: Any) -> None:
            told = f"{function.__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"
            if not self.over() and (self.repeats or told != self.story[-1]):
                self.story.append(told)
                with self.remembered():
                    function(self, **values)

        return rule(**drawn)(in_time)

    return wrap
