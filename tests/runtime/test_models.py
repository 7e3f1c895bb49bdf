"""The five models of the tests learn: what other tests show on them is shown on real training."""

from __future__ import annotations

import pytest
import torch
from gpuspawner_runtime.steps import Stepper
from runtime.models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_a_model_learns(name: str) -> None:
    torch.manual_seed(0)
    task, made = MODELS[name](), torch.Generator().manual_seed(1)
    stepper = Stepper(task.model, torch.optim.AdamW(task.model.parameters(), lr=3e-3), clip=1.0)
    pair = task.batch(16, made)
    first = task.loss(task.model, pair).item()
    for _ in range(15):
        stepper.step(task.loss(task.model, pair))
    assert task.loss(task.model, pair).item() < 0.9 * first
