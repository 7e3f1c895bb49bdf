"""A session that goes around the shim to compute longer than its share is seen by the node, and by policy ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.busy import Busy
from support.limits import wait_until
from support.machine import machine

from gpuspawner.node.limits import launch
from gpuspawner.node.overuse import WINDOW

pytestmark = pytest.mark.skipif(launch.probe() != "guarded", reason="this machine allows no namespaces")


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Busy]:
    env = {"GPUSPAWNER_COMPUTE_POLICY": "end", "GPUSPAWNER_EXCESS_SECONDS": "3"}
    with machine(tmp_path / "state", "1*h100-80gb", env=env, timed=True) as made:
        yield Busy(tmp_path, made)


def test_who_goes_around_the_shim_is_ended_and_its_neighbour_has_its_share_again(busy: Busy) -> None:
    neighbour = busy.start("ann", "1/2")
    mallory, program = busy.prepare("mallory", "1/8")

    def notices(of: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = busy.machine.api.get(f"/sessions/{of['id']}").json()["notices"]
        return found

    # Honest first: long kernels, paid for afterwards, for longer than the node looks back.
    program("compute(200000, 'sync')")
    shares = busy.shares(1.5 * WINDOW)
    assert 5 < shares[mallory["id"]] < 25
    assert notices(mallory) == notices(neighbour) == []
    program("loads.pop().kill()")

    program("compute(1000, 'plain', LD_LIBRARY_PATH='/run/gpuspawner/driver')")
    assert busy.shares()[mallory["id"]] > 50
    [notice] = wait_until(lambda: notices(mallory), "the notice", 40)
    assert notice["code"] == "over_compute"
    assert notice["deadline"] is not None
    wait_until(lambda: notices(mallory)[0]["code"] != "over_compute", "the end of the process", 30)
    assert program("loads[0].wait()") == -9
    codes = wait_until(lambda: [each["code"] for each in notices(mallory)], "the notice of the end")
    assert codes == ["process_ended"]
    wait_until(lambda: busy.shares()[neighbour["id"]] > 43, "the neighbour's share")
    assert program("1 + 1") == 2
    assert notices(neighbour) == []
    rows = busy.machine.api.get("/events", params={"session": mallory["id"]}).json()["events"]
    ended, over = [row["reason"] for row in rows if row["kind"] == "excess"]
    assert "of the time of card" in over
    assert "was ended" in ended
