"""A training in a notebook of the hub, in the environment with PyTorch: killed with kill -9, it comes back exactly, and
the panel shows its checkpoints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from support.common import until
from support.pages import put, run_in_kernel, start_lab
from support.stack import Stack, stack

ROOT = Path(__file__).parents[2]
TORCH = ROOT / ".venv-torch"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.hub,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (TORCH / "bin/python").exists(), reason="no environment with PyTorch: run make runtime"),
]

SETTING = """
import hashlib, os, pathlib, torch
from torch import nn
from gpuspawner_runtime import fast, run

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.1), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
x = torch.randn(1200, 8, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)

def train_step(batch):
    inputs, wanted = batch
    return nn.functional.mse_loss(model(inputs), wanted)
"""
TRAINING = """
deadly = pathlib.Path(NAME + ".deadly")
with run(NAME, model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, every=0.2) as r:
    pathlib.Path(NAME + ".begun").open("a").write(f"{r.resumed} {r.steps}\\n")
    # without the compiler, which takes a minute; kept on disk, so that both trainings compute in the same way
    step = fast(train_step, ways=["bf16"], cache=True)
    for batch in r:
        r.step(step(batch))
        if deadly.exists() and r.saver.saves >= 2:
            deadly.unlink()
            os.kill(os.getpid(), 9)
values = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
pathlib.Path(NAME + ".end").write_text(hashlib.sha256(values + torch.rand(2).numpy().tobytes()).hexdigest())
print(r.report())
"""


def notebook(name: str) -> str:
    """A notebook as a person would write it: one cell that makes everything, and one that trains."""
    cells = [{"cell_type": "code", "id": str(n), "metadata": {}, "execution_count": None, "outputs": [], "source": s}
             for n, s in enumerate((SETTING, f"NAME = {name!r}{TRAINING}"))]  # fmt: skip
    spec = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}
    return json.dumps({"cells": cells, "metadata": spec, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole stack, with the environment that `make runtime` has made on the form."""
    with stack(tmp_path_factory.mktemp("hub"), env={"GPUSPAWNER_RUNTIME": str(TORCH)}) as made:
        yield made


@pytest.fixture
def lab(chromium: Browser, hub: Stack) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(120_000)
    expect.set_options(timeout=120_000)
    page = context.new_page()
    try:
        start_lab(page, hub, "tara", "1/8", environment="pytorch")
        yield page
    finally:
        folder = ROOT / "test-output"
        folder.mkdir(exist_ok=True)
        page.screenshot(path=folder / "last-training.png")
        context.close()


def open_notebook(page: Page, name: str) -> None:
    page.evaluate("path => window.jupyterapp.commands.execute('docmanager:open', { path })", f"{name}.ipynb")
    expect(page.get_by_role("contentinfo")).to_contain_text(f"{name}.ipynb")
    expect(page.get_by_role("contentinfo")).to_contain_text(re.compile("Idle"))


def run_all(page: Page) -> None:
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")


def runs(home: Path) -> dict[str, Any]:
    path = home / ".local/state/gpuspawner-runtime/runs/lived/state.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def test_a_killed_training_comes_back_exactly_and_the_panel_shows_it(lab: Page, hub: Stack) -> None:
    home = hub.state / "users" / "tara"
    for name in ("whole", "lived"):
        put(hub, "tara", f"{name}.ipynb", notebook(name))
    put(hub, "tara", "lived.deadly", "")

    open_notebook(lab, "whole")
    run_all(lab)
    until(lambda: (home / "whole.end").exists(), 300, "the training that nobody kills")

    open_notebook(lab, "lived")
    run_all(lab)
    until(lambda: not (home / "lived.deadly").exists(), 300, "the training to be killed")
    # Jupyter has started the kernel again, and says so
    dialog = lab.locator(".jp-Dialog").filter(has_text="Kernel Restarting")
    expect(dialog).to_be_visible()
    dialog.get_by_role("button").last.click()
    expect(lab.get_by_role("contentinfo")).to_contain_text(re.compile("Idle"))
    assert not (home / "lived.end").exists()
    run_all(lab)
    until(lambda: (home / "lived.end").exists(), 300, "the training to end")
    begun = (home / "lived.begun").read_text().splitlines()
    assert begun[0] == "None 0"
    assert re.fullmatch(r"step-\d+ [1-9]\d*", begun[1])
    assert (home / "lived.end").read_text() == (home / "whole.end").read_text()

    until(lambda: runs(home).get("status") == "ended", 60)
    names = [row["name"] for row in runs(home)["checkpoints"]]
    assert names[-1] == "step-300"
    panel = lab.locator("#gpuspawner-panel")
    if not panel.is_visible():
        lab.locator(".jp-gpu-item").click()
    row = panel.locator(".jp-gpu-run").filter(has_text="lived").locator("li").filter(has_text="step-300")
    expect(row).to_contain_text("verified")
    row.get_by_role("button", name=re.compile("pin", re.IGNORECASE)).first.click()
    # nobody trains now: the request waits for the run, which takes it when it goes on
    listed = "[row[1] for row in get_ipython().run_line_magic('ckpt', 'ls lived').rows]"
    run_in_kernel(lab, f"assert 'step-300' in {listed}, {listed}")
    expect(row).to_contain_text("waiting for the run")
    run_in_kernel(lab, "with run(NAME, model=model, optimizer=optimizer, scheduler=scheduler, loader=loader): pass")
    until(lambda: runs(home)["checkpoints"][-1]["pinned"], 60)
    expect(row).not_to_contain_text("waiting for the run")
    if os.geteuid() == 0:
        assert (home / ".local/share/gpuspawner-runtime/checkpoints/lived/step-300/pinned").exists()


@pytest.mark.case("runtime-5")
def test_a_kernel_may_take_its_time_to_end(hub: Stack) -> None:
    config = json.loads((TORCH / "etc/jupyter/jupyter_server_config.d/gpuspawner_runtime.json").read_text())
    assert config["KernelManager"]["shutdown_wait_time"] >= 30
