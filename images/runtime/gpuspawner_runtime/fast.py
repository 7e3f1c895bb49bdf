"""`fast(step)`: the way to run a training step that is fastest here, measured on the step itself and checked.

    step = fast(train_step)
    for batch in loader:
        stepper.step(step(batch))

The first call measures: eager as written, autocast to bfloat16 or float16 (with a GradScaler), and `torch.compile`.
Every way must agree with eager within a stated tolerance, the fastest is kept, and one line says why. Eager is kept
unless something is surely faster. Weights, optimizer, random numbers, buffers and the caller's own lists are
afterwards exactly what they were.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from gpuspawner_runtime import choices
from gpuspawner_runtime.choices import Choice
from gpuspawner_runtime.errors import RuntimeFault
from gpuspawner_runtime.precision import EAGER, WAYS, Tolerance, Way, loss_of, precisions_for
from gpuspawner_runtime.rollback import Reached
from gpuspawner_runtime.together import agree, rank
from gpuspawner_runtime.trial import Outcome, Trial, Unmeasurable, faster

_DISK = Path("~/.cache/gpuspawner-runtime/fast")


def fast(
    step: Callable[..., Any],
    *,
    ways: Sequence[str] | None = None,
    tolerance: Tolerance | None = None,
    steps: int | None = None,
    budget: float = 10.0,
    cache: bool | str | Path = False,
    backend: str | Callable[..., Any] = "inductor",
    quiet: bool = False,
) -> FastStep:
    """Make a step that runs in the fastest way that is right.

    `step` takes a batch and returns the loss (a scalar tensor, or a dict, tuple or object that has it); `Stepper`
    does backward and update. A step that does both itself is measured too, without float16.

    `ways`: which to try beside eager, of `bf16`, `fp16`, `compiled`, `bf16+compiled`, `fp16+compiled`; by default
    what makes sense on the device, and compiled with the best of them. `tolerance`: how far from eager a way may be,
    in place of the one for its type. `steps`: how many steps will be run, if known; compiling must pay off within them.
    `budget`: seconds for the timing, beside compiling. `cache`: True or a folder keeps choices on disk. `backend`: of
    `torch.compile`. `quiet`: print nothing; the line stands in `.line`.

    Raises TypeError for a step that cannot be called and RuntimeFault for other arguments that are not allowed. A way
    that fails is no error: eager is kept.
    """
    if isinstance(step, FastStep):
        return step
    if not callable(step):
        raise TypeError(f"step must be a function that takes a batch and returns the loss, not {step!r}")
    for name in ways or ():
        _check("ways", name, name in WAYS and name != EAGER.name, ", ".join(n for n in WAYS if n != EAGER.name))
    _check("steps", steps, steps is None or (type(steps) is int and steps >= 1), "a whole number from 1, or None")
    _check("budget", budget, 0 < budget <= 3600, "more than 0 and at most 3600 seconds")
    return FastStep(step, ways, tolerance, steps, budget, cache, backend, quiet)


def _check(field: str, given: object, right: bool, allowed: str) -> None:
    if not right:
        raise RuntimeFault(f"{field} is {given!r}: allowed is {allowed}.", field=field, given=given, allowed=allowed)


class FastStep:
    """A step that measures itself at its first call. Call it as the step that it was made of."""

    def __init__(
        self,
        step: Callable[..., Any],
        ways: Sequence[str] | None,
        tolerance: Tolerance | None,
        steps: int | None,
        budget: float,
        cache: bool | str | Path,
        backend: str | Callable[..., Any],
        quiet: bool,
    ) -> None:
        functools.update_wrapper(self, step, updated=())
        self._step = step
        self._ways, self._tolerance, self._steps, self._budget = ways, tolerance, steps, budget
        self._backend, self._quiet = backend, quiet
        self._folder = None if cache is False else (_DISK if cache is True else Path(cache)).expanduser()
        self._call: Callable[..., Any] | None = None
        self._plain = False
        self._device = "cpu"
        self._shapes: Any = None
        #: What was chosen; None before the first call.
        self.choice: Choice | None = None
        #: The scaler that float16 needs; `Stepper` takes it over from the loss.
        self.scaler: torch.amp.GradScaler | None = None
        #: Times and errors of all ways that were tried, if they were tried here.
        self.outcomes: list[Outcome] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step; the first time measure before that."""
        if self._call is None:
            self._choose(args, kwargs)
        if self._plain:
            return self._step(*args, **kwargs)
        assert self._call is not None
        assert self.choice is not None
        way = self.choice.chosen
        # A batch of another size, such as the last one, is not worth compiling for.
        call = self._step if way.compiled and choices.shapes((args, kwargs)) != self._shapes else self._call
        with way.context(self._device):
            result = call(*args, **kwargs)
        if self.scaler is not None:
            loss = loss_of(result)
            if loss is not None:
                loss._gpuspawner_scaler = self.scaler
        return result

    @property
    def line(self) -> str:
        """What was chosen and why, in one line."""
        return "fast: not measured yet, the first call does it" if self.choice is None else f"fast: {self.choice.why}"

    def __repr__(self) -> str:
        return f"<{self.line}>"

    def _choose(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        reached = Reached(self._step, [*args, *kwargs.values()])
        settings = (self._ways, self._tolerance, self._steps, str(self._backend))
        key = choices.key_of(self._step, args, kwargs, reached, settings)
        found = choices.known(key, self._folder)
        # Either all processes of a run know, or all measure: measuring is done in step.
        if found is None or not all(agree(found is not None)):
            choice = self._measure(key, args, kwargs)
            self._say(choice.why)
        else:
            choice = found
            self._say(f"{choice.way}, as measured before")
        choices.remember(key, choice, self._folder if rank() == 0 else None)
        self._use(choice, key, reached, (args, kwargs))

    def _use(self, choice: Choice, key: str, reached: Reached, call: Any) -> None:
        device = next((p.device for p in reached.parameters if p.device.type != "cpu"), torch.device("cpu"))
        self._device, self._shapes = device.type, choices.shapes(call)
        self._call = self._callable(choice.chosen, key, reached)
        if choice.scale is not None:
            self.scaler = torch.amp.GradScaler(device.type, init_scale=choice.scale)
        self.choice = choice
        self._plain = choice.chosen == EAGER

    def _callable(self, way: Way, key: str, reached: Reached) -> Callable[..., Any]:
        if not way.compiled:
            return self._step
        if not isinstance(self._step, types.FunctionType):
            return _compile(self._step, self._backend)
        # torch.compile knows what it has compiled by the code object. A cell that runs again makes a new one of the
        # same text; the first one, with the new function's variables, is found compiled.
        # So do the functions that it calls: they get their first code back, which has the same text.
        own, helpers = self._step.__code__, [each for each in reached.functions if each is not self._step]
        codes = choices.compiled_code.setdefault(
            f"{key} {way.name}", [own.replace(co_name=own.co_name), *(each.__code__ for each in helpers)]
        )
        for helper, code in zip(helpers, codes[1:], strict=True):
            helper.__code__ = code
        function = types.FunctionType(
            codes[0], self._step.__globals__, self._step.__name__, self._step.__defaults__, self._step.__closure__
        )
        function.__kwdefaults__ = self._step.__kwdefaults__
        function.__module__ = self._step.__module__
        return _compile(function, self._backend)

    def _measure(self, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Choice:
        try:
            trial = Trial(self._step, args, kwargs, self._tolerance, self._budget)
            with trial:
                return self._compare(trial, key)
        except Unmeasurable as why:
            return Choice(EAGER.name, f"eager kept: {why}")
        except (MemoryError, torch.OutOfMemoryError):
            return Choice(EAGER.name, "eager kept: there is no memory for a copy of the state to measure with")

    def _compare(self, trial: Trial, key: str) -> Choice:
        eager = trial.eager()
        base = max(agree(min(eager.seconds)))
        plain = [way for way in self._wanted(trial.device) if not way.compiled]
        self._try(trial, eager, base, plain, key)
        best = self._best(eager)
        compiled = self._compiled_ways(best.way if best else EAGER)
        if compiled:
            self._say("compiling the step once, to compare; this can take a minute")
            self._try(trial, eager, base, compiled, key)
        return self._decide(eager, self._best(eager))

    def _wanted(self, device: torch.device) -> list[Way]:
        return precisions_for(device) if self._ways is None else [WAYS[name] for name in self._ways]

    def _compiled_ways(self, best: Way) -> list[Way]:
        if self._ways is not None:
            return [WAYS[name] for name in self._ways if WAYS[name].compiled]
        return [Way(best.dtype, compiled=True)]

    def _try(self, trial: Trial, eager: Outcome, base: float, ways: list[Way], key: str) -> None:
        running: list[tuple[Outcome, Callable[..., Any]]] = []
        for way in ways:
            call = self._callable(way, key, trial.reached)
            outcome = trial.compare(way, call, base)
            # What one process cannot do, none does.
            outcome.problem = next((problem for problem in agree(outcome.problem) if problem), None)
            self.outcomes.append(outcome)
            if outcome.problem is None:
                running.append((outcome, call))
        if running:
            rounds = min(agree(trial.rounds(base * (1 + len(running)))))
            trial.time(eager, running, rounds)

    def _best(self, eager: Outcome) -> Outcome | None:
        speeds: list[tuple[float, Outcome]] = []
        for outcome in self.outcomes:
            # The slowest process sets the pace of all.
            everywhere = agree(faster(outcome))
            speed = min((s for s in everywhere if s), default=None) if all(everywhere) else None
            if speed is not None and self._pays(eager, outcome):
                speeds.append((speed, outcome))
        return max(speeds, key=lambda each: each[0], default=(0.0, None))[1]

    def _pays(self, eager: Outcome, outcome: Outcome) -> bool:
        paid = _paid_after(eager, outcome)
        return paid is None or self._steps is None or max(agree(paid)) < self._steps

    def _decide(self, eager: Outcome, best: Outcome | None) -> Choice:
        eager_ms = 1000 * (eager.median or 0)
        others = [_summary(eager, outcome) for outcome in self.outcomes if outcome is not best]
        if best is None or best.median is None:
            why = "; ".join([f"eager kept, {eager_ms:.3g} ms a step", *others])
            return Choice(EAGER.name, why, 1.0, eager_ms, eager_ms)
        speed = min(s for s in agree(faster(best)) if s)
        ms = 1000 * best.median
        why = f"{best.way.name}, {speed:.2f}x eager ({eager_ms:.3g} → {ms:.3g} ms a step)"
        paid = _paid_after(eager, best)
        if paid is not None:
            why += f", compiling took {best.compile_seconds:.0f} s and has paid off after {paid:,.0f} steps"
        return Choice(best.way.name, "; ".join([why, *others]), speed, eager_ms, ms, best.scale)

    def _say(self, text: str) -> None:
        if not self._quiet and rank() == 0:
            print(f"fast: {text}", flush=True)


def _compile(function: Callable[..., Any], backend: str | Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(function, backend=backend)
    return compiled


def _paid_after(eager: Outcome, outcome: Outcome) -> float | None:
    if outcome.compile_seconds is None or outcome.median is None or eager.median is None:
        return None
    gain = eager.median - outcome.median
    return outcome.compile_seconds / gain if gain > 0 else float("inf")


def _summary(eager: Outcome, outcome: Outcome) -> str:
    if outcome.problem is not None:
        return f"{outcome.way.name} {outcome.problem}"
    if eager.median is None or outcome.median is None:
        return f"{outcome.way.name} not timed"
    return f"{outcome.way.name} {eager.median / outcome.median:.2f}x"
