"""A simulation of vehicles in a session: it asks for a larger share while it runs, and spreads into it without a stop.

The card is simulated and does not compute, so the processor does.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hub import Hub
from support.stack import stack

ROOT = Path(__file__).parents[3]
TORCH = ROOT / ".venv-torch"
pytestmark = [
    pytest.mark.hub,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (TORCH / "bin/python").exists(), reason="no environment with PyTorch: run make runtime"),
]

BEGIN = """
import json, os, torch
torch.set_num_threads(1)
from gpuspawner_examples.driving import Drive, RingRoad, World, pick
device, line = pick()
world = World(RingRoad(length=1500), 40, places=40, rays=8, device=device)
drive = Drive(world).start()
drive.wait(lambda: world.steps >= 20)
print(json.dumps([line, os.getpid(), world.vehicles]))
"""
AFTER = """
drive.wait(lambda: drive.log[-1][1] > 40)
grown_at = world.steps
drive.wait(lambda: world.steps >= grown_at + 20)
drive.stop()
print(json.dumps([os.getpid(), list(drive.log), drive.spread.grown, world.crashed]))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with stack(tmp_path_factory.mktemp("vehicles"), "1*h100-80gb", env={"GPUSPAWNER_RUNTIME": str(TORCH)}) as made:
        yield Hub(made)


def test_a_simulation_spreads_into_a_larger_share_in_the_same_kernel_without_a_gap(hub: Hub) -> None:
    with hub.user("vera") as vera:
        session = vera.start({"share": "1/8", "environment": "pytorch"})
        home = hub.stack.state / "users/vera"
        shutil.copytree(ROOT / "images/examples/gpuspawner_examples", home / "gpuspawner_examples")
        owner = home.stat()
        for path in [home / "gpuspawner_examples", *(home / "gpuspawner_examples").rglob("*")]:
            os.chown(path, owner.st_uid, owner.st_gid)
        kernel = vera.kernel()
        line, process, vehicles = json.loads(kernel(BEGIN, within=300))
        assert line.startswith("computed on the processor: ")
        assert vehicles == 40

        said = kernel("get_ipython().run_line_magic('gpu', 'resize 1/2')")
        assert "1/2" in said
        after = vera.session()
        assert (after["id"], after["share"]) == (session["id"], "1/2")

        same, log, grown, crashed = json.loads(kernel(AFTER, within=300))
        assert same == process
        steps = [step for step, _, _ in log]
        assert steps == list(range(1, len(steps) + 1))
        ((at, before, then),) = grown
        # an eighth and four of them, each rounded down to what the card can give
        assert (before, then) == (40, 160)
        assert at >= 20
        assert [count for _, count, _ in log] == [40] * at + [160] * (len(log) - at)
        assert crashed == 0
