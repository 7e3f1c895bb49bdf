"""`fast`: the right way is kept, the line says why, and measuring leaves no trace."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from gpuspawner_runtime import RuntimeFault, choices
from gpuspawner_runtime.fast import FastStep, fast
from gpuspawner_runtime.steps import Stepper
from runtime.models import MODELS
from torch import nn

SLOW = 0.03


@pytest.fixture(autouse=True)
def nothing_is_known() -> None:
    choices.forget()
    torch._dynamo.reset()


def small() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), torch.randn(12, 8)


def autocast_is_on() -> bool:
    return torch.is_autocast_enabled("cpu")


def counting(calls: list[int], slow: float = 0.0, factor: float = 1.0) -> Callable[..., Any]:
    """A backend that compiles to the graph itself, and counts; it can be slow or wrong."""

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        calls.append(1)

        def compiled(*args: Any) -> Any:
            time.sleep(slow)
            out = graph.forward(*args)
            return tuple(each * factor if each.is_floating_point() else each for each in out) if factor != 1 else out

        return compiled

    return backend


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """All that training depends on, copied."""
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    states = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    numpy_state = numpy.random.get_state()
    return [states, gradients, torch.get_rng_state(), random.getstate(), [str(part) for part in numpy_state]]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize("name", MODELS)
def test_measuring_changes_nothing_that_training_depends_on(name: str) -> None:
    torch.manual_seed(1)
    task = MODELS[name]()
    model, batch = task.model, task.batch(4, torch.Generator().manual_seed(2))
    optimizer = torch.optim.AdamW(model.parameters())
    seen: list[float] = []
    counts = {"calls": 0}

    def step(pair: Any) -> torch.Tensor:
        counts["calls"] += 1
        random.random()
        numpy.random.rand()
        loss = task.loss(model, pair)
        seen.append(float(loss))
        return loss

    # in the middle of training: the optimizer has a state, and a gradient waits for the rest of its update
    stepper = Stepper(model, optimizer, accumulate=2)
    for _ in range(3):
        stepper.step(step(batch))
    before, twin_calls = everything(model, optimizer), counts["calls"]
    quick = fast(step, ways=["bf16"], budget=0.2, quiet=True)
    quick._choose((batch,), {})
    assert quick.outcomes, quick.line
    assert equal(before, everything(model, optimizer))
    assert (counts["calls"], len(seen)) == (twin_calls, twin_calls)


def test_a_step_that_updates_by_itself_is_wound_back_too() -> None:
    model, data = small()
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    before = everything(model, optimizer)
    quick = fast(step, ways=["bf16"], budget=0.2, quiet=True)
    quick._choose((data,), {})
    assert quick.outcomes[0].loss_error is not None
    assert equal(before, everything(model, optimizer))
    assert schedule.last_epoch == 0
    assert optimizer.state == {}


@pytest.mark.case("runtime-8")
def test_bf16_that_is_slower_than_eager_is_measured_and_left(capsys: pytest.CaptureFixture[str]) -> None:
    model, data = small()

    def step(batch: torch.Tensor) -> torch.Tensor:
        if autocast_is_on():
            time.sleep(SLOW)
        return model(batch).square().mean()

    quick = fast(step, ways=["bf16"], budget=0.2)
    loss = quick(data)
    assert loss.dtype == torch.float32
    assert quick.choice is not None
    assert quick.choice.way == "eager"
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1
    assert said[0].startswith("fast: eager kept")
    assert "bf16 0." in said[0]


@pytest.mark.case("runtime-8")
def test_a_compiled_step_that_is_slower_is_measured_and_left(capsys: pytest.CaptureFixture[str]) -> None:
    model, data = small()
    quick = fast(
        lambda batch: model(batch).square().mean(), ways=["compiled"], backend=counting([], slow=SLOW), budget=0.2
    )
    quick(data)
    assert quick.choice is not None
    assert quick.choice.way == "eager"
    assert "compiled 0." in capsys.readouterr().out.splitlines()[-1]


def test_the_faster_way_is_kept_and_used() -> None:
    model, data = small()
    used: list[bool] = []

    def step(batch: torch.Tensor) -> torch.Tensor:
        used.append(autocast_is_on())
        if not autocast_is_on():
            time.sleep(SLOW)
        return model(batch).square().mean()

    quick = fast(step, ways=["bf16"], budget=0.3, quiet=True)
    quick(data)
    assert quick.choice is not None
    assert quick.choice.way == "bf16"
    assert quick.choice.speedup is not None
    assert quick.choice.speedup > 1.03
    assert used == [True]  # what was measured has been taken out of the list again


def test_a_way_that_computes_something_else_is_refused_however_fast() -> None:
    model, data = small()

    def step(batch: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(SLOW)
        return model(batch).square().mean()

    quick = fast(step, ways=["compiled"], backend=counting([], factor=1.05), budget=0.2, quiet=True)
    quick(data)
    assert quick.choice is not None
    assert quick.choice.way == "eager"
    assert "off by 5.0% in the loss" in quick.line


def test_gradients_are_compared_as_well_as_the_loss() -> None:
    model, data = small()

    def step(batch: torch.Tensor) -> torch.Tensor:
        if not autocast_is_on():
            time.sleep(SLOW)
            return model(batch).square().mean()
        loss = model(batch).square().mean()
        return loss.detach() + 2 * (loss - loss.detach())  # the same value, twice the gradient

    quick = fast(step, ways=["bf16"], budget=0.2, quiet=True)
    quick(data)
    assert quick.choice is not None
    assert quick.choice.way == "eager"
    assert "in the gradients" in quick.line


@pytest.mark.case("runtime-8")
def test_a_compiler_that_fails_is_no_error() -> None:
    model, data = small()

    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    quick = fast(lambda batch: model(batch).square().mean(), ways=["compiled"], backend=broken, quiet=True)
    assert quick(data).requires_grad
    assert quick.choice is not None
    assert quick.choice.way == "eager"
    assert "compiled failed" in quick.line
    assert "no compiler here" in quick.line


_CELL = """
def helper(out):
    return out.square().mean()

def train_step(batch):
    if not torch.compiler.is_compiling():
        runs.append(1)
        time.sleep(0.03)
    return helper(model(batch))

step = fast(train_step, ways=["compiled"], backend=backend, budget=0.2, quiet=True)
loss = step(data)
"""


@pytest.mark.case("runtime-10")
def test_a_cell_that_runs_again_neither_compiles_nor_measures_again() -> None:
    model, data = small()
    compiled: list[int] = []
    notebook: dict[str, Any] = {"__name__": "__main__", "torch": torch, "time": time, "fast": fast, "runs": []}
    notebook |= {"model": model, "data": data, "backend": counting(compiled)}
    exec(compile(_CELL, "<cell 1>", "exec"), notebook)
    first: FastStep = notebook["step"]
    assert first.choice is not None
    assert first.choice.way == "compiled", first.line
    assert len(first.outcomes) == 1
    times = len(compiled)
    assert times == 1
    for number in (2, 3):
        exec(compile("\n\n" + _CELL, f"<cell {number}>", "exec"), notebook)  # other lines, another file
        again: FastStep = notebook["step"]
        assert again is not first
        assert again.choice == first.choice
        assert again.outcomes == []  # nothing was measured
        assert len(compiled) == times
    assert notebook["runs"] == []  # eager was never run except to measure
    exec(compile(_CELL.replace("square()", "abs()"), "<cell 4>", "exec"), notebook)
    assert notebook["step"].outcomes  # other code is another step
    assert len(compiled) == times + 1


@pytest.mark.case("runtime-9")
def test_a_compiled_step_leaves_the_names_in_the_model_alone() -> None:
    model, data = small()
    names = list(model.state_dict())
    quick = fast(
        lambda batch: time.sleep(0 if torch.compiler.is_compiling() else SLOW) or model(batch).square().mean(),
        ways=["compiled"],
        backend=counting([]),
        budget=0.2,
        quiet=True,
    )
    quick(data)
    assert list(model.state_dict()) == names
    assert not any("_orig_mod" in name for name in names)


def test_choices_last_on_disk_if_wanted_and_damage_there_means_measuring_again(tmp_path: Path) -> None:
    model, data = small()

    def step(batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().mean()

    settings: dict[str, Any] = {"ways": ["bf16"], "budget": 0.1, "quiet": True, "cache": tmp_path / "choices"}
    first = fast(step, **settings)
    first(data)
    (file,) = (tmp_path / "choices").iterdir()
    choices.forget()
    second = fast(step, **settings)
    second(data)
    assert second.outcomes == []
    assert second.choice == first.choice
    for damage in (b"", b"{", b'{"format": 1, "way": "warp", "why": ""}', b"[]", b"\xff"):
        file.write_bytes(damage)
        choices.forget()
        third = fast(step, **settings)
        third(data)
        assert third.outcomes, damage


def test_other_shapes_or_another_model_are_measured_apart() -> None:
    model, data = small()
    wider = nn.Linear(8, 1)
    keys = set()
    for used, batch in ((model, data), (model, data[:4]), (wider, data)):
        quick = fast(lambda part, used=used: used(part).mean(), ways=["bf16"], budget=0.1, quiet=True)
        quick(batch)
        keys |= set(choices.export())
    assert len(keys) == 3


def test_a_batch_of_another_size_runs_as_written_and_is_not_compiled_for() -> None:
    model, data = small()
    compiled: list[int] = []

    def step(batch: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(SLOW)
        return model(batch).square().mean()

    quick = fast(step, ways=["compiled"], backend=counting(compiled), budget=0.2, quiet=True)
    quick(data)
    assert quick.choice is not None
    assert quick.choice.way == "compiled"
    expected = model(data[:5]).square().mean()
    assert torch.equal(quick(data[:5]), expected)
    assert len(compiled) == 1


@pytest.mark.case("runtime-6")
def test_float16_brings_its_scaler_along_to_the_stepper_and_into_the_checkpoint() -> None:
    model, data = small()

    def step(batch: torch.Tensor) -> torch.Tensor:
        if not autocast_is_on():
            time.sleep(SLOW)
        return model(batch).float().square().mean()

    quick = fast(step, ways=["fp16"], budget=0.3, quiet=True)
    stepper = Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1), clip=1.0)
    result = stepper.step(quick(data))
    assert result.updated
    assert stepper.scaler is quick.scaler is not None
    assert result.scale == quick.scaler.get_scale() > 1
    state = stepper.state_dict()
    assert state["scaler"]["scale"] == result.scale

    # After a restart the run computes as it did before, without measuring, and the scaler goes on.
    choices.forget()
    again = Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1), clip=1.0)
    again.load_state_dict({**state, "scaler": {**state["scaler"], "scale": 32.0}})
    quick_again = fast(step, ways=["fp16"], budget=0.3, quiet=True)
    again.step(quick_again(data))
    assert quick_again.outcomes == []
    assert again.scaler is not None
    assert again.scaler.get_scale() == 32.0


def test_an_iterator_in_the_step_is_not_drawn_from_to_measure() -> None:
    model, data = small()
    batches = iter([data, data * 2, data * 3])

    def step() -> torch.Tensor:
        return model(next(batches)).square().mean()

    quick = fast(step, quiet=True)
    assert torch.equal(quick(), model(data).square().mean())
    assert "cannot be wound back" in quick.line
    assert torch.equal(quick(), model(data * 2).square().mean())


def test_an_interrupt_in_the_middle_of_measuring_winds_back_first() -> None:
    model, data = small()
    norm = nn.BatchNorm1d(8)
    calls: list[int] = []

    def step(batch: torch.Tensor) -> torch.Tensor:
        if autocast_is_on():
            raise KeyboardInterrupt
        calls.append(1)
        return model(norm(batch)).square().mean()

    before, rng = copy.deepcopy(norm.state_dict()), torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        fast(step, ways=["bf16"], quiet=True)(data)
    assert equal(before, norm.state_dict())
    assert torch.equal(rng, torch.get_rng_state())
    assert calls == []


def test_a_step_that_fails_raises_what_it_raises() -> None:
    def step(batch: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("as written")

    with pytest.raises(ZeroDivisionError, match="as written"):
        fast(step, quiet=True)(torch.ones(2))


def test_a_loss_may_stand_in_a_dict_and_a_step_may_only_evaluate() -> None:
    model, data = small()
    quick = fast(lambda batch: {"loss": model(batch).mean(), "out": 3}, ways=["bf16"], budget=0.1, quiet=True)
    assert quick(data)["out"] == 3
    assert quick.outcomes[0].loss_error is not None

    @torch.no_grad()
    def judge(batch: torch.Tensor) -> torch.Tensor:
        return model(batch)

    looks = fast(judge, ways=["bf16"], budget=0.1, quiet=True)
    assert looks(data).shape == (12, 1)
    assert looks.outcomes[0].loss_error is not None


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"ways": ["fp8"]}, "ways"), ({"steps": 0}, "steps"), ({"steps": True}, "steps"), ({"budget": 0}, "budget")],
)
def test_what_is_not_allowed_is_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(RuntimeFault, match=field) as refused:
        fast(lambda batch: batch, **settings)
    assert refused.value.field == field


def test_a_fast_step_made_fast_is_itself() -> None:
    quick = fast(lambda batch: batch)
    assert fast(quick) is quick
    with pytest.raises(TypeError, match="step must be a function"):
        fast(3)  # type: ignore[arg-type]
