"""The code of the how-tos does what they say, as it stands there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from gpuspawner_runtime import elastic
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.runtime.test_elastic import Node, node

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
__all__ = ["node"]


def _blocks(page: str) -> list[str]:
    return [
        textwrap.dedent(block)
        for block in re.findall(r"^```python\n(.*?)^```", (HOW_TO / page).read_text(), re.S | re.M)
    ]


def test_train_faster(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pictures = torch.randn(160, 8)
    names: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "loader": DataLoader(TensorDataset(pictures, (pictures.sum(dim=1) > 0).long()), batch_size=20),
        "loss_function": nn.CrossEntropyLoss(),
    }
    measured, follow = _blocks("train-faster.md")
    before = [parameter.clone() for parameter in model.parameters()]
    exec(measured, names)
    assert names["stepper"].updates == 2, "eight batches, four of them one update"
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert names["step"].line in capsys.readouterr().out

    names["my_cache"] = type("Cache", (list,), {"nbytes": 5})([1])
    exec(follow, names)
    parts = names["parts"]
    small = parts.size
    node.allow(4)
    elastic.check()
    assert "20 → 40 GiB" in capsys.readouterr().out
    assert (small, parts.size) == (16, 32)
    assert names["free"]() == 5
    assert names["my_cache"] == []
