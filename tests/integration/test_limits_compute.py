"""Compute is held to the share, on simulated cards whose kernels take time (timed mode).

What is measured is the card's own count of whose kernels it ran; bounds are wide, since the machine may be busy. How
exact it is, `make bench-compute-share` and `make bench-linear` say.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.compute import Ground, ground
from support.limits import wait_until

from gpuspawner.node.limits import abi
from gpuspawner.simulation import BIN

pytestmark = pytest.mark.alone

PAID_UNTIL_AT = 274432


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Ground]:
    with ground(tmp_path / "ground") as made:
        yield made


@pytest.mark.parametrize("how", ["plain", "sync", "ex", "cooperative", "multi", "graph", "thread"])
def test_every_kind_of_launch_is_held(one: Ground, how: str) -> None:
    session = one.group()
    session.limit((2, 0))
    session.load(1000, how)
    assert 12 < one.shares([session], 1.5)[0] < 31


def test_two_sessions_do_not_take_from_each_other(one: Ground) -> None:
    quarter, half = one.group(), one.group()
    quarter.limit((2, 0))
    half.limit((4, 250))
    quarter.load(1000)
    half.load(3000)
    shares = one.shares([quarter, half], 2)
    assert 18 < shares[0] < 31
    assert 40 < shares[1] < 57


def test_more_processes_are_no_more_compute(one: Ground) -> None:
    session = one.group()
    session.limit((2, 0))
    for _ in range(6):
        session.load(500, "sync")
    assert one.shares([session], 1.5)[0] < 32
    session.processes[0].kill()  # wherever it is
    session.processes[1].kill()
    assert 12 < one.shares([session], 1.5)[0] < 32


def test_a_long_kernel_is_paid_for_afterwards(one: Ground) -> None:
    session = one.group()
    session.limit((2, 0))
    session.load(200_000, "sync")
    (clock, [had]) = one.busy([session])
    # Five more of them are a second of the card's time, for which a quarter needs four; at most one is under way.
    wait_until(lambda: one.busy([session])[1][0] >= had + 1_000_000_000, "the fifth long kernel's end", 60)
    assert one.busy([session])[0] - clock > 3_000_000_000


def test_a_whole_card_is_not_held_and_changes_are_seen_at_once(one: Ground) -> None:
    session = one.group()
    session.limit((8, 0))
    session.load(5000, "sync")
    assert one.shares([session])[0] > 75
    session.limit((1, 0))
    wait_until(lambda: one.shares([session], 0.5)[0] < 25, "being held to an eighth")
    session.limit((8, 0))
    wait_until(lambda: one.shares([session], 0.5)[0] > 75, "having the whole card again")


def test_cards_of_one_session_do_not_hold_each_other_up(tmp_path: Path) -> None:
    with ground(tmp_path / "ground", "2*h100-80gb") as both:
        session = both.group()
        session.limit((1, 0), (8, 0))
        session.load(1000, device=0)
        session.load(1000, device=1)
        shares = [both.shares([session], 1, card)[0] for card in (0, 1)]
        assert shares[0] < 20
        assert shares[1] > 75


def test_allowance_decides_and_not_the_eighths(one: Ground) -> None:
    session = one.group()
    session.limit((1, 0), burst=True, compute=600)
    session.load(1000)
    assert 45 < one.shares([session], 1.5)[0] < 68


def test_with_burst_little_is_launched_ahead(one: Ground) -> None:
    session = one.group()
    session.limit((1, 0), burst=True, compute=1000)
    session.load(5000)  # it would fill the driver's queue with 20 s of work
    assert one.shares([session])[0] > 75
    session.limit((1, 0), burst=True)
    (clock, [had]) = one.busy([session])
    wait_until(lambda: one.shares([session], 0.5)[0] < 25, "being held to an eighth again")
    after, [has] = one.busy([session])
    assert has - had < 500_000_000 + (after - clock) // 5


def test_nothing_that_stands_in_the_usage_file_stops_a_session_for_long(one: Ground) -> None:
    session, other = one.group(), one.group()
    session.limit((4, 0))
    other.limit((4, 500))
    session.load(1000)
    other.load(1000)
    chance = random.Random(3)
    with (session.folder / "usage").open("r+b", buffering=0) as usage:
        for _ in range(200):
            os.pwrite(usage.fileno(), chance.randbytes(1024), PAID_UNTIL_AT)
        os.pwrite(usage.fileno(), struct.pack("=Q", (1 << 64) - 1) + bytes(56), PAID_UNTIL_AT)
        before = time.monotonic_ns()
        # Whatever was written counts as a debt of 30 s at most.
        paid = wait_until(lambda: _paid(usage.fileno(), before + (1 << 40)), "a moment that can be believed")
        assert paid - before < 60_000_000_000
        os.pwrite(usage.fileno(), bytes(1024), PAID_UNTIL_AT)
    assert one.shares([session, other], 1)[0] > 30
    assert one.shares([session, other], 1)[1] > 35


def _paid(usage: int, most: int) -> int | None:
    [paid] = struct.unpack("=Q", os.pread(usage, 8, PAID_UNTIL_AT))
    return paid if paid < most else None


def test_the_mps_server_is_left_to_share_the_card_and_that_is_said_once(one: Ground) -> None:
    pipes = one.folder / "mps"
    pipes.mkdir()
    os.mkfifo(pipes / "control")
    session = one.group()
    session.limit((1, 0))
    session.load(5000, CUDA_MPS_PIPE_DIRECTORY=str(pipes))
    assert one.shares([session])[0] > 75
    session.limit((2, 0))  # looked at again, and nothing said again
    one.shares([session], 0.2)
    assert session.errors() == [
        "gpuspawner: compute is not held to the share: the MPS server is on, which shares cards by its own rules"
    ]
    session.end()
    session.load(5000, CUDA_MPS_PIPE_DIRECTORY=str(one.folder / "nothing"))
    assert one.shares([session], 1.5)[0] < 40


def test_without_the_driver_s_times_the_clock_alone_holds_and_that_is_said_once(tmp_path: Path) -> None:
    driver = tmp_path / "libcuda.so.1"
    whole = (BIN / "libcuda.so.1").read_bytes()
    assert whole.count(b"\0cuEventRecord\0") >= 1
    driver.write_bytes(whole.replace(b"\0cuEventRecord\0", b"\0cuEventRecorX\0"))  # by its own name it is not found now
    with ground(tmp_path / "ground", driver=driver) as poor:
        session = poor.group()
        session.limit((1, 0))
        session.load(5000, "sync")
        assert poor.shares([session], 2)[0] < 25
        session.limit((2, 0))
        poor.shares([session], 0.2)
        assert session.errors() == [
            "gpuspawner: compute is held to the share by the clock alone: the driver has no event times"
        ]


def test_the_file_s_layout_is_the_shim_s() -> None:
    header = (Path(abi.__file__).parent / "shim" / "abi.h").read_text()
    assert f"offsetof(struct abi_usage_file, compute) == {PAID_UNTIL_AT}" in header
