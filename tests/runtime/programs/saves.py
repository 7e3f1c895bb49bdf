"""Saves again and again, for whoever kills it: saves.py LOG [SAME].

What is saved is all its own step, so that a reader can tell whether a checkpoint is of one moment. Begins where it was;
a line in LOG says that it has begun.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from gpuspawner_runtime import autocheckpoint

torch.set_num_threads(1)
model = torch.nn.Linear(300, 300)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
state = {"step": 0}
with autocheckpoint("killed", model=model, optimizer=optimizer, state=state, every=600, keep=2) as saver:
    assert state["step"] == saver.steps
    with Path(sys.argv[1]).open("a") as log:
        log.write(f"{saver.steps}\n")
    while True:
        state["step"] += 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(state["step"])
        saver.step()
        saver.save(sys.argv[2] if len(sys.argv) > 2 else None)
