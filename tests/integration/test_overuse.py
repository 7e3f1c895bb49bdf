"""A session that goes around the shim to compute longer than its share is seen by the node, and by policy ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.busy import Busy
from support.escapes import ADVISORY
from support.limits import wait_until
from support.machine import SessionProgram, machine

from gpuspawner.node.limits import abi, launch
from gpuspawner.node.overuse import WINDOW
from gpuspawner.simulation import BIN

pytestmark = pytest.mark.alone

guarded = pytest.mark.skipif(launch.probe() != "guarded", reason="this machine allows no namespaces")
SETTINGS = {"GPUSPAWNER_COMPUTE_POLICY": "end", "GPUSPAWNER_EXCESS_SECONDS": "3"}


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Busy]:
    with machine(tmp_path / "state", "1*h100-80gb", env=SETTINGS, timed=True) as made:
        yield Busy(tmp_path, made)


@pytest.fixture
def advisory(tmp_path: Path) -> Iterator[Busy]:
    with machine(tmp_path / "state", "1*h100-80gb", prefix=ADVISORY, env=SETTINGS, timed=True) as made:
        yield Busy(tmp_path, made)


def is_ended(busy: Busy, neighbour: dict[str, Any], mallory: dict[str, Any], program: SessionProgram) -> None:
    """The last program that `mallory` started computes too long; it is ended, and the neighbour has its share again."""
    assert busy.shares()[mallory["id"]] > 50
    wait_until(lambda: program("loads[-1].poll()") == -9, "the end of the process", 60)
    wait_until(lambda: busy.shares()[neighbour["id"]] > 43, "the neighbour's share")
    assert program("1 + 1") == 2


@guarded
def test_a_limit_file_of_ones_own_brings_no_time_for_long(busy: Busy) -> None:
    """In a mount namespace within, over the node's."""
    neighbour = busy.start("ann", "1/2")
    mallory, program = busy.prepare("mallory", "1/8")
    home = Path(program("os.getcwd()"))
    _whole(busy, mallory, home / "limit")
    mine = "/run/gpuspawner/limits/limit"
    script = f"mount --bind limit {mine} && exec ./compute 1000 plain 0"
    program(
        "loads.append(subprocess.Popen(['unshare', '--user', '--map-root-user', '--mount', 'sh', '-c', "
        f"{script!r}], stdout=subprocess.PIPE)); assert loads[-1].stdout.readline() == b'ready\\n'"
    )
    is_ended(busy, neighbour, mallory, program)


def test_in_advisory_grade_the_same_ways_end_the_same(advisory: Busy) -> None:
    neighbour = advisory.start("ann", "1/2")
    mallory, program = advisory.prepare("mallory", "1/8")
    program(f"compute(1000, 'plain', LD_LIBRARY_PATH={str(BIN)!r})")
    is_ended(advisory, neighbour, mallory, program)
    home = Path(program("os.getcwd()"))
    _whole(advisory, mallory, home / "limit")
    program(f"compute(1000, 'plain', GPUSPAWNER_LIMITS={str(home / 'limit')!r})")
    is_ended(advisory, neighbour, mallory, program)


def _whole(busy: Busy, session: dict[str, Any], path: Path) -> None:
    """The session's limit file with a whole card in it."""
    own = abi.read_limits(launch.limit_path(busy.machine.state / "node" / "sessions" / session["id"]))
    abi.write_limits(path, [replace(limit, eighths=8, compute=1000, compute_from=0) for limit in own])
    path.chmod(0o644)


@guarded
def test_who_goes_around_the_shim_is_ended_and_its_neighbour_has_its_share_again(busy: Busy) -> None:
    neighbour = busy.start("ann", "1/2")
    mallory, program = busy.prepare("mallory", "1/8")

    def notices(of: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = busy.machine.api.get(f"/sessions/{of['id']}").json()["notices"]
        return found

    def codes() -> list[str]:
        return [each["code"] for each in notices(mallory)]

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
    # where the driver's figures come late, nobody is judged for a while, and there is no notice
    wait_until(lambda: codes() not in ([], ["over_compute"]), "the end of the process", 60)
    assert program("loads[0].wait()") == -9
    assert codes() == ["process_ended"]
    wait_until(lambda: busy.shares()[neighbour["id"]] > 43, "the neighbour's share")
    assert program("1 + 1") == 2
    assert notices(neighbour) == []
    rows = busy.machine.api.get("/events", params={"session": mallory["id"]}).json()["events"]
    ended, over = [row["reason"] for row in rows if row["kind"] == "excess"]
    assert "of the time of card" in over
    assert "was ended" in ended
