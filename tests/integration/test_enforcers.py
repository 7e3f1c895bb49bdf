"""What holds a session to its share, chosen by what the card offers: the driver's limits, MIG slices, the shim."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuspawner.node.installation import short_name
from gpuspawner.node.leftovers import remove_cgroups
from gpuspawner.node.limits import launch
from tests.support import cgroups
from tests.support.common import until
from tests.support.machine import Machine, machine

GIB = 1 << 30
H100 = 81559 << 20

NAMESPACES = launch.probe() == "guarded" and os.geteuid() == 0
needs_cgroups = pytest.mark.skipif(
    cgroups.root() is None or not NAMESPACES, reason="no cgroup of version 2 and namespaces by root here"
)

# The driver itself at its place in the session, past the shim, as a hostile program would load it.
PAST_THE_SHIM = """
import ctypes
cu = ctypes.CDLL(DRIVER)
context = ctypes.c_void_p()
codes = [cu.cuInit(0), cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cu.cuCtxSetCurrent(context)]
def past(size):
    pointer = ctypes.c_uint64()
    return cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
"""
DRIVER = "DRIVER = '/run/gpuspawner/driver/libcuda.so.1'"


def ask(on: Machine, program: str) -> str:
    """Run a program of pynvml's beside the service, as the administrator would."""
    code = f"import pynvml as N\nN.nvmlInit()\nh = N.nvmlDeviceGetHandleByIndex(0)\n{program}"
    done = subprocess.run([sys.executable, "-c", code], env=on.env(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def slices(on: Machine) -> int:
    program = """
found = 0
for i in range(7):
    try: N.nvmlDeviceGetMigDeviceHandleByIndex(h, i); found += 1
    except N.NVMLError_NotFound: pass
print(found)"""
    return int(ask(on, program))


def offers(on: Machine) -> dict[str, dict[str, Any]]:
    return {offer["share"]: offer for offer in on.api.get("/offers").json()["offers"]}


def end(on: Machine, session: dict[str, Any]) -> None:
    on.api.delete(f"/sessions/{session['id']}")
    until(lambda: on.api.get(f"/sessions/{session['id']}").json()["state"] == "ended", what="the session to end")


@pytest.fixture(scope="module")
def cut_card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine whose card was put into MIG mode before gpuspawner was started."""
    made = Machine(tmp_path_factory.mktemp("mig") / "state", "1*h100-80gb")
    try:
        made.cards.__enter__()
        ask(made, "N.nvmlDeviceSetMigMode(h, 1)")
        made.start_service()
        yield made
    finally:
        made.close()


def test_a_share_of_a_cut_card_is_a_slice_that_changes_by_a_restart(cut_card: Machine) -> None:
    assert {share: offer["free_places"] for share, offer in offers(cut_card).items()} == {
        "1/8": 7,
        "1/4": 3,
        "1/2": 2,
        "1": 1,
    }
    session, program = cut_card.start("ann", "1/4")
    assert session["resize"] == "restart"
    assert not session["resizable"]
    assert {option["live"] for option in session["options"]} == {False}
    assert program("os.environ['CUDA_VISIBLE_DEVICES']").startswith("MIG-51a1ca4d-")
    assert program("info()")[1] == H100 // 4 >> 20 << 20
    assert program("allocate(18 << 30)") == "CUDA_SUCCESS"
    assert program("allocate(2 << 30)") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert cut_card.api.get(f"/sessions/{session['id']}").json()["memory_used_bytes"] == (18 << 30) + (64 << 20)
    refused = cut_card.api.patch(f"/sessions/{session['id']}", json={"share": "1/8"})
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "resize_needs_restart"
    assert "start it with the share" in refused.json()["error"]["message"]
    assert offers(cut_card)["1/4"]["free_places"] == 2
    cut_card.kill_service()
    cut_card.start_service()
    assert slices(cut_card) == 1
    assert program("allocate(1 << 20)") == "CUDA_SUCCESS"
    program.kill()
    end(cut_card, session)
    until(lambda: slices(cut_card) == 0, what="the slice to be destroyed")
    again, program = cut_card.start("ann", "1/8")
    assert program("info()")[1] == H100 // 8 >> 20 << 20
    program.kill()
    end(cut_card, again)


@pytest.mark.case("hub-17")
def test_a_process_in_a_slice_is_shown_with_its_slice(cut_card: Machine) -> None:
    mine, program = cut_card.start("ann", "1/4")
    others, other = cut_card.start("bob", "1/8")
    assert program("allocate(3 << 30)") == other("allocate(5 << 30)") == "CUDA_SUCCESS"
    # as the panel, `%gpu` and `GPUShare()` read it inside the session
    program("from gpuspawner_lab.nvml import NVMLReader")
    program(f"(card,) = NVMLReader().read([{mine['cards'][0]['uuid']!r}], True)")
    assert program("card.uuid") == program("os.environ['CUDA_VISIBLE_DEVICES']")
    assert program("card.name") == "NVIDIA H100 80GB HBM3 MIG 2g.20gb (simulated)"
    assert program("card.memory_allowed_bytes") == H100 // 4 >> 20 << 20
    assert program("[list(each) for each in card.processes]") == [[program("os.getpid()"), (3 << 30) + (64 << 20)]]
    assert program("card.utilization_percent") is None
    for session, running in ((mine, program), (others, other)):
        running.kill()
        end(cut_card, session)


def test_slices_that_do_not_fit_are_refused_in_words(cut_card: Machine) -> None:
    halves = [cut_card.start(user, "1/2") for user in ("ann", "bob")]
    refused = cut_card.api.post("/sessions", json={"user": "cid", "share": "1/8"})
    assert refused.status_code == 409
    offer = offers(cut_card)["1/8"]
    assert not offer["available"]
    assert "slice" in offer["reason"] or "in use" in offer["reason"]
    for session, program in halves:
        program.kill()
        end(cut_card, session)
    until(lambda: slices(cut_card) == 0, what="the slices to be destroyed")
    assert offers(cut_card)["1"]["free_places"] == 1


@pytest.fixture(scope="module")
def by_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine whose driver holds sessions to their limits itself."""
    with machine(tmp_path_factory.mktemp("d") / "state", "1*h100-80gb", env={"GPUSPAWNER_ENFORCERS": "driver"}) as made:
        yield made


@needs_cgroups
def test_the_drivers_own_limit_holds_whoever_goes_past_the_shim(by_driver: Machine) -> None:
    running = by_driver
    session, program = running.start("ann", "1/4")
    assert session["grade"] == "kernel"
    assert session["resize"] == "live"
    program(DRIVER)
    program(PAST_THE_SHIM)
    assert program("codes") == [0, 0, 0]
    quarter = H100 // 4
    assert program(f"past({quarter})") == 2
    assert program(f"past({quarter - GIB})") == 0
    grow = running.api.patch(f"/sessions/{session['id']}", json={"share": "1/2"})
    assert grow.status_code == 200, grow.text
    assert program(f"past({quarter})") == 0
    shrink = running.api.patch(f"/sessions/{session['id']}", json={"share": "1/4"})
    assert shrink.status_code == 409
    assert shrink.json()["error"]["need_to_free_bytes"] > 0
    assert program("past(512 << 20)") == 0, "the limit was put back"
    folder = next(Path(str(cgroups.root())).glob(f"gpuspawner/*/{session['id']}"))
    program.kill()
    end(running, session)
    until(lambda: not folder.exists(), what="the cgroup to be removed")


@needs_cgroups
def test_a_driver_that_keeps_the_old_limit_is_noticed(by_driver: Machine) -> None:
    running = by_driver
    for answer in ("ignore", "refuse"):
        running.cards.control(f"limits-below-usage {answer}")
        session, program = running.start(f"ann-{answer}", "1/2")
        assert program("allocate(30 << 30)") == "CUDA_SUCCESS"
        shrink = running.api.patch(f"/sessions/{session['id']}", json={"share": "1/4"})
        assert shrink.status_code == 409, shrink.text
        assert shrink.json()["error"]["code"] == "in_use"
        assert program("allocate(1 << 30)") == "CUDA_SUCCESS"
        program("free_all()")
        shrink = running.api.patch(f"/sessions/{session['id']}", json={"share": "1/4"})
        assert shrink.status_code == 200, shrink.text
        program.kill()
        end(running, session)


def test_a_setting_that_no_card_can_follow_is_refused_by_name(cut_card: Machine, tmp_path: Path) -> None:
    env = cut_card.env() | {
        "GPUSPAWNER_STATE": str(tmp_path / "state"),
        "GPUSPAWNER_PORT": str(cut_card.port),
        "GPUSPAWNER_ENFORCERS": "shim",
    }
    (tmp_path / "state" / "secrets").mkdir(parents=True)
    (tmp_path / "state" / "secrets" / "service_token").write_text("t" * 64)
    argv = [sys.executable, "-m", "gpuspawner.service"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1
    assert "GPUSPAWNER_ENFORCERS" in done.stderr
    assert "in MIG mode" in done.stderr


@needs_cgroups
@pytest.mark.parametrize("how", ["ended", "killed"])
def test_no_cgroup_is_left_of_an_installation_that_has_ended(tmp_path: Path, how: str) -> None:
    """By the service where it ends without sessions; by what `gpuspawner stop` does, where it was killed before."""
    with machine(tmp_path / "state", "1*h100-80gb", env={"GPUSPAWNER_ENFORCERS": "driver"}) as made:
        folder = Path(str(cgroups.root())) / "gpuspawner" / short_name(made.state)
        session, program = made.start("ann", "1/8")
        assert [path.name for path in folder.iterdir() if path.is_dir()] == [session["id"]]
        if how == "killed":
            made.kill_service()
            assert remove_cgroups(made.state) == [folder / session["id"]], "it has processes"
            program.kill()
            until(lambda: not remove_cgroups(made.state), what="its processes to go")
        else:
            program.kill()
            end(made, session)
            assert made.service is not None
            made.service.terminate()
            made.service.wait(30)
        assert not folder.exists()
