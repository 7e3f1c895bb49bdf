"""Eight patients on one card: eight sessions of an eighth, a ninth that waits, one that ends, and another that grows.

All nine have servers of their own. Two of them reconstruct, in kernels with PyTorch, on the processor, since simulated
cards compute nothing; the other seven only hold their share, because nine times PyTorch is much for a small machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.common import until
from support.hub import Hub, Kernel, User
from support.stack import stack

ROOT = Path(__file__).parents[3]
TORCH = ROOT / ".venv-torch"
pytestmark = [
    pytest.mark.hub,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (TORCH / "bin/python").exists(), reason="no environment with PyTorch: run make runtime"),
]

#: Seconds; nine servers start within, beside other tests
LONG = 400.0
#: Two phases of the breath: the error of the tumour's surroundings, and what it is if all views are taken together.
RECONSTRUCTION = """
import json, sys, torch
sys.dont_write_bytecode = True
torch.set_num_threads(1)
from gpuspawner_examples.ct import breathing, fit, iterative, phantoms

def reconstruct():
    now = fit.fit(24, phases=4)
    grid, beam = now.size.grid, now.size.beam
    scan = breathing.scan(beam)
    together = iterative.of_all_views(scan.projections, grid, beam)
    views = scan.bins(4)[2]
    (found,) = iterative.by_phase(scan.projections, grid, beam, [views], prior=together)
    truth = phantoms.thorax(0.5).voxels(grid)
    z, y, x = torch.meshgrid(*(grid.axis(axis) for axis in range(3)), indexing="ij")
    tumour = (x + 76) ** 2 + (y - 14) ** 2 + (z + 4) ** 2 < 30**2
    error = lambda volume: float((volume - truth)[tumour].square().mean().sqrt())
    said = {"edge": now.size.edge, "views": now.size.views, "line": now.line}
    return said | {"error": error(found), "blurred": error(together)}

runs = globals().get("runs", [])
runs.append(reconstruct())
print(json.dumps(runs))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with stack(tmp_path_factory.mktemp("patients"), "1*h100-80gb", env={"GPUSPAWNER_RUNTIME": str(TORCH)}) as made:
        yield Hub(made)


def computes(user: User) -> Kernel:
    """A kernel in which the example can be imported."""
    home = user.hub.stack.state / "users" / user.name
    place = home / "gpuspawner_examples"
    shutil.copytree(ROOT / "images/examples/gpuspawner_examples", place, ignore=shutil.ignore_patterns("__pycache__"))
    owner = home.stat()
    for path in [place, *place.rglob("*")]:
        os.chown(path, owner.st_uid, owner.st_gid)
    return user.kernel()


def test_eight_share_a_card_a_ninth_waits_and_one_grows_when_there_is_room(hub: Hub) -> None:
    with contextlib.ExitStack() as opened:
        patients = [opened.enter_context(hub.user(f"patient-{number}")) for number in range(1, 10)]
        *eight, ninth = patients
        for user in eight:
            environment = {"environment": "pytorch"} if user is eight[0] else {}
            assert user.ask({"share": "1/8", **environment}).status_code in (201, 202)
        until(lambda: all(user.server().get("ready") for user in eight), LONG, "eight servers", every=0.5)
        sessions = [user.session() for user in eight]
        assert [session["share"] for session in sessions] == ["1/8"] * 8
        assert len({session["cards"][0]["uuid"] for session in sessions}) == 1, "all on one card"
        assert hub.free_eighths() == 0

        kernel = computes(eight[0])
        (first,) = json.loads(kernel(RECONSTRUCTION, within=LONG))
        assert (first["edge"], first["views"]) == (24, 120)
        assert "The share is 1/8; its 10.0 GiB would hold" in first["line"]
        assert first["error"] < first["blurred"]

        assert ninth.ask({"share": "1/8", "wait": True, "environment": "pytorch"}).status_code in (201, 202)
        (waits,) = until(hub.queue, LONG, "the ninth to wait")
        assert (waits["user"], waits["share"]) == ("patient-9", "1/8")
        assert "1/4 does not fit" in kernel("get_ipython().run_line_magic('gpu', 'resize 1/4')")
        assert eight[0].session()["share"] == "1/8"

        eight[7].stop()
        assert ninth.ready()["share"] == "1/8"
        assert hub.queue() == []
        assert hub.free_eighths() == 0
        (its,) = json.loads(computes(ninth)(RECONSTRUCTION, within=LONG))
        assert its["error"] == pytest.approx(first["error"], rel=1e-3), "the same scan, by the same share"

        eight[6].stop()
        assert "1/8 → 1/4" in kernel("get_ipython().run_line_magic('gpu', 'resize 1/4')")
        before, after = json.loads(kernel(RECONSTRUCTION, within=LONG))
        assert before == first, "the same kernel"
        assert (after["edge"], after["views"]) == (32, 128)
        assert "The share is 2/8; its 19.9 GiB would hold" in after["line"]
        assert after["error"] < after["blurred"]
        assert hub.free_eighths() == 0
