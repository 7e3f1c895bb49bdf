"""From a loss to changed weights: scaler, accumulation, clipping, schedules, half updates."""

from __future__ import annotations

import copy
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gpuspawner_runtime import RuntimeFault
from gpuspawner_runtime.steps import NonFiniteError, Stepper
from torch import nn

ROWS, PARTS = 24, 4


def parts_of_data() -> list[torch.Tensor]:
    data = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(3))
    return list(data.chunk(PARTS))


def made(optimizer: Any = torch.optim.SGD, **settings: Any) -> tuple[nn.Module, Stepper]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    made_optimizer = optimizer(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(made_optimizer, 1, 0.5)
    return model, Stepper(model, made_optimizer, scheduler, **settings)


def loss_of(model: nn.Module, part: torch.Tensor) -> torch.Tensor:
    return 40 * model(part).square().mean()


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.case("runtime-6")
def test_with_a_scaler_accumulated_and_clipped_the_weights_are_those_without_one() -> None:
    # A scale that is a power of two changes no bit of a finite float32 gradient. Unscaled twice, or clipped before it
    # is unscaled, the weights differ.
    plain, stepper = made(accumulate=2, clip=1.0)
    scaled, scaled_stepper = made(accumulate=2, clip=1.0, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    for part in parts_of_data():
        one = stepper.step(loss_of(plain, part))
        other = scaled_stepper.step(loss_of(scaled, part))
        assert one.updated == other.updated
    assert stepper.updates == scaled_stepper.updates == PARTS // 2
    assert same(weights(plain), weights(scaled))


def test_accumulated_it_is_the_update_of_the_whole_batch() -> None:
    whole, stepper = made()
    stepper.step(loss_of(whole, torch.cat(parts_of_data())))
    split, split_stepper = made(accumulate=PARTS)
    results = [split_stepper.step(loss_of(split, part)) for part in parts_of_data()]
    assert [result.updated for result in results] == [False, False, False, True]
    torch.testing.assert_close(weights(split), weights(whole), rtol=1e-5, atol=1e-6)


@pytest.mark.case("runtime-6")
def test_a_skipped_step_is_reported_and_the_schedule_waits() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    model, stepper = made(scaler=scaler, clip=1.0)
    before = weights(model)
    result = stepper.step(1e4 * loss_of(model, parts_of_data()[0]))
    assert (result.updated, result.skipped) == (False, True)
    assert "overflowed" in str(result.why)
    assert result.scale == 2.0**125
    assert same(before, weights(model))
    assert stepper.schedulers[0].last_epoch == 0
    assert (stepper.updates, stepper.skips) == (0, 1)
    scaler.load_state_dict({**scaler.state_dict(), "scale": 8.0})
    result = stepper.step(loss_of(model, parts_of_data()[0]))
    assert result.updated
    assert stepper.schedulers[0].last_epoch == 1
    assert not same(before, weights(model))


@pytest.mark.parametrize("scaler", [False, True])
def test_a_loss_that_is_not_finite_changes_nothing_and_is_said(scaler: bool) -> None:
    model, stepper = made(accumulate=2, scaler=torch.amp.GradScaler("cpu", init_scale=8.0) if scaler else None)
    first, second, *_ = parts_of_data()
    before = weights(model)
    stepper.step(loss_of(model, first) * torch.nan)
    result = stepper.step(loss_of(model, second))
    assert result.skipped
    assert result.why == "the loss is not finite"
    assert same(before, weights(model))
    assert all(parameter.grad is None for parameter in model.parameters())
    stepper.step(loss_of(model, first))
    assert stepper.step(loss_of(model, second)).updated


def test_a_gradient_that_is_not_finite_is_skipped_when_clipped() -> None:
    model, stepper = made(clip=1.0)
    next(model.parameters()).register_hook(lambda gradient: gradient * torch.inf)
    before = weights(model)
    result = stepper.step(loss_of(model, parts_of_data()[0]))
    assert result.why == "a gradient is not finite"
    assert same(before, weights(model))


def test_it_raises_if_that_was_asked_for() -> None:
    model, stepper = made(nonfinite="raise")
    with pytest.raises(NonFiniteError, match="At batch 1, the loss is not finite"):
        stepper.step(loss_of(model, parts_of_data()[0]) * torch.inf)


@pytest.mark.case("runtime-6")
@pytest.mark.parametrize("stop_after", [2, 3])
def test_state_goes_through_a_file_also_in_the_middle_of_an_update(stop_after: int) -> None:
    def scaler() -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

    straight, stepper = made(torch.optim.AdamW, accumulate=2, clip=1.0, scaler=scaler())
    batches = parts_of_data() * 2
    for part in batches:
        stepper.step(loss_of(straight, part))

    stopped, stopped_stepper = made(torch.optim.AdamW, accumulate=2, clip=1.0, scaler=scaler())
    for part in batches[:stop_after]:
        stopped_stepper.step(loss_of(stopped, part))
    file = io.BytesIO()
    states = [stopped, stopped_stepper.optimizers[0], stopped_stepper.schedulers[0], stopped_stepper]
    torch.save([each.state_dict() for each in states], file)
    file.seek(0)

    again, again_stepper = made(torch.optim.AdamW, accumulate=2, clip=1.0, scaler=scaler())
    states = [again, again_stepper.optimizers[0], again_stepper.schedulers[0], again_stepper]
    for each, saved in zip(states, torch.load(file, weights_only=True), strict=True):
        each.load_state_dict(saved)
    for part in batches[stop_after:]:
        again_stepper.step(loss_of(again, part))
    assert same(weights(straight), weights(again))
    assert stepper.scaler is not None
    assert again_stepper.scaler is not None
    assert stepper.scaler.state_dict() == again_stepper.scaler.state_dict()
    assert stepper.scaler.get_scale() > 4.0  # it has grown: restored as new, it would not have


def test_several_optimizers_are_stepped_and_unscaled_each_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]
    stepper = Stepper(model, optimizers, scaler=torch.amp.GradScaler("cpu", init_scale=256.0), clip=0.5)
    other = Stepper(twin, torch.optim.SGD(twin.parameters(), lr=0.1), clip=0.5)
    for part in parts_of_data():
        stepper.step(loss_of(model, part))
        other.step(loss_of(twin, part))
    assert same(weights(model), weights(twin))


def test_what_is_left_at_the_end_can_be_flushed() -> None:
    model, stepper = made(accumulate=4)
    before = weights(model)
    stepper.step(loss_of(model, parts_of_data()[0]))
    assert not stepper.between
    result = stepper.flush()
    assert result is not None
    assert result.updated
    assert stepper.between
    assert not same(before, weights(model))
    assert stepper.flush() is None


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"accumulate": 0}, "accumulate"),
        ({"accumulate": True}, "accumulate"),
        ({"accumulate": 1.5}, "accumulate"),
        ({"clip": 0}, "clip"),
        ({"clip": float("nan")}, "clip"),
        ({"nonfinite": "ignore"}, "nonfinite"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(RuntimeFault, match=field) as refused:
        made(**settings)
    assert refused.value.field == field


def test_a_loss_without_a_graph_is_refused_with_what_to_do() -> None:
    model, stepper = made()
    for wrong in (loss_of(model, parts_of_data()[0]).detach(), 3.5, None):
        with pytest.raises(RuntimeFault, match=r"not loss\.item\(\)"):
            stepper.step(wrong)
    assert stepper.count(3.5).updated


def test_a_schedule_that_needs_a_measure_is_refused() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(RuntimeFault, match="ReduceLROnPlateau"):
        Stepper(nn.Linear(1, 1), optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))


_TWO = """
import json, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from gpuspawner_runtime.steps import Stepper
rank, meeting = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
torch.manual_seed(1)
model = DistributedDataParallel(nn.Linear(6, 1))
sent = []
def hook(state, bucket):
    sent.append(1)
    whole = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
    return whole.then(lambda done: done.value()[0])
model.register_comm_hook(None, hook)
data = torch.randn(24, 6, generator=torch.Generator().manual_seed(3)).chunk(2)[rank].chunk(4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# one that a failed cell has left in the middle of an update: the next one begins anew
left = Stepper(model, optimizer, accumulate=4)
left.step(model(data[0]).square().mean())
optimizer.zero_grad()
sent.clear()
stepper = Stepper(model, optimizer, accumulate=4)
after = []
for part in data:
    stepper.step(model(part).square().mean())
    after.append(len(sent))
weight = model.module.weight.detach().flatten().tolist()
results = [stepper.step(model(part).square().mean() * (torch.nan if rank == 1 else 1)).why for part in data]
print(json.dumps({"sent": after, "weight": weight, "bad": results[-1],
                  "kept": weight == model.module.weight.detach().flatten().tolist()}))
dist.destroy_process_group()
"""


@pytest.mark.case("runtime-6")
def test_two_processes_exchange_gradients_once_for_each_update_and_skip_together(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _TWO]
    both = [
        subprocess.Popen([*argv, str(rank), f"file://{tmp_path / 'meeting'}"], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    said = [json.loads(process.communicate(timeout=150)[0].strip().splitlines()[-1]) for process in both]
    assert [each["sent"] for each in said] == [[0, 0, 0, 1]] * 2
    assert said[0]["weight"] == said[1]["weight"]
    torch.manual_seed(1)
    model = nn.Linear(6, 1)
    data = torch.randn(24, 6, generator=torch.Generator().manual_seed(3))
    model(data).square().mean().backward()
    expected = (model.weight - 0.1 * model.weight.grad).detach().flatten().tolist()
    assert said[0]["weight"] == pytest.approx(expected, rel=1e-5)
    # One process's bad loss spoils the gradients of both: neither may apply them.
    assert [each["bad"] for each in said] == ["the loss is not finite"] * 2
    assert all(each["kept"] for each in said)
