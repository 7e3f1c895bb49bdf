"""The driver's own memory limits of cgroups, as the simulated driver holds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import cgroups

GIB = 1 << 30
CONTEXT = 64 << 20
OUT_OF_MEMORY = 2

pytestmark = pytest.mark.skipif(cgroups.root() is None, reason="no cgroup of version 2 can be made here")


@pytest.fixture
def group() -> Iterator[Path]:
    below = cgroups.root()
    assert below is not None
    with cgroups.cgroup(below) as made:
        yield made


@pytest.fixture
def nvml(program):
    """A program with pynvml: `set(path, hard)`, `get(path)`, `fault(function, ...)`."""
    running = program()
    running(
        """
import pynvml as N
N.nvmlInit()
h = N.nvmlDeviceGetHandleByIndex(0)
MAX = (1 << 64) - 1
def set_limit(path, hard, soft=0, device=h):
    try:
        N.nvmlDeviceSetMemoryLimits_v1(device, N.c_nvmlSetMemoryLimits_v1_t(path.encode(), soft, hard))
    except N.NVMLError as error:
        return type(error).__name__
def get_limit(path, device=h):
    limits = N.c_nvmlGetMemoryLimits_v1_t(path.encode())
    try:
        N.nvmlDeviceGetMemoryLimits_v1(device, limits)
    except N.NVMLError as error:
        return type(error).__name__
    return [limits.softLimit, limits.hardLimit, limits.currentUsed]
"""
    )
    return running


def in_group(program, group: Path):
    running = program()
    cgroups.move(running.pid, group)
    return running


def test_a_limit_holds_all_processes_of_the_cgroup_to_the_byte(nvml, program, group):
    assert nvml(f"get_limit({str(group)!r})") == [0, (1 << 64) - 1, 0]
    assert nvml(f"set_limit({str(group)!r}, {GIB})") is None
    one, two = in_group(program, group), in_group(program, group)
    free = program()
    free("context = start()\nalloc(4 * GIB)")
    one("context = start()\nalloc(GIB // 2)")
    two("context = start()")
    room = GIB // 2 - 2 * CONTEXT
    assert nvml(f"get_limit({str(group)!r})") == [0, GIB, GIB - room]
    with pytest.raises(AssertionError) as refused:
        two(f"alloc({room + 512})")
    assert refused.value.code == OUT_OF_MEMORY
    two(f"alloc({room})")
    with pytest.raises(AssertionError):
        one("alloc(512)")
    assert nvml(f"get_limit({str(group)!r})")[2] == GIB
    two.kill()
    one("alloc(GIB // 4)")
    free("alloc(GIB)")


def test_the_limit_is_the_card_for_whoever_asks_inside(nvml, program, group):
    nvml(f"set_limit({str(group)!r}, {GIB})")
    inside = in_group(program, group)
    inside("context = start()\nalloc(GIB // 2)")
    assert inside("info()") == [GIB // 2 - CONTEXT, GIB]
    inside("import pynvml as N\nN.nvmlInit()\nh = N.nvmlDeviceGetHandleByIndex(0)")
    memory = "N.nvmlDeviceGetMemoryInfo(h, version=N.nvmlMemory_v2)"
    assert inside(f"[{memory}.total, {memory}.used, {memory}.free]") == [GIB, GIB // 2 + CONTEXT, GIB // 2 - CONTEXT]
    assert nvml(f"{memory}.total") == 81559 << 20


def test_a_limit_counts_what_was_there_before_and_what_is_in_cgroups_below(nvml, program, group):
    with cgroups.cgroup(group) as below:
        early = in_group(program, below)
        early("context = start()\nalloc(GIB)")
        nvml(f"set_limit({str(group)!r}, {2 * GIB})")
        assert nvml(f"get_limit({str(group)!r})")[2] == GIB + CONTEXT
        assert nvml(f"get_limit({str(below)!r})") == [0, 2 * GIB, GIB + CONTEXT]
        with pytest.raises(AssertionError):
            early("alloc(GIB)")


@pytest.mark.parametrize(
    ("below", "error", "hard"),
    [("accept", None, GIB), ("refuse", "NVMLError_InUse", 2 * GIB), ("ignore", None, 2 * GIB)],
)
def test_lowered_below_what_is_used_the_driver_answers_as_scripted(nvml, program, group, cards, below, error, hard):
    cards.control(f"limits-below-usage {below}")
    nvml(f"set_limit({str(group)!r}, {2 * GIB})")
    inside = in_group(program, group)
    inside("context = start()\np = alloc(3 * GIB // 2)")
    assert nvml(f"set_limit({str(group)!r}, {GIB})") == error
    assert nvml(f"get_limit({str(group)!r})")[1] == hard
    if below == "accept":
        assert inside("info()") == [0, GIB]
        with pytest.raises(AssertionError):
            inside("alloc(512)")
        inside("cu.MemFree_v2(p)\nalloc(GIB // 2)")


def test_a_limit_goes_when_it_is_taken_away_or_its_cgroup_is_removed(nvml, program, group):
    nvml(f"set_limit({str(group)!r}, {GIB})")
    assert nvml(f"set_limit({str(group)!r}, MAX)") is None
    assert nvml(f"get_limit({str(group)!r})") == [0, (1 << 64) - 1, 0]
    nvml(f"set_limit({str(group)!r}, {GIB})")
    cgroups.remove(group)
    group.mkdir()
    assert nvml(f"get_limit({str(group)!r})") == [0, (1 << 64) - 1, 0]


def test_what_cannot_be_set_is_refused(nvml, group, tmp_path, cards):
    assert nvml(f"set_limit({str(tmp_path)!r}, {GIB})") == "NVMLError_NotFound"
    assert nvml(f"set_limit({str(group / 'none')!r}, {GIB})") == "NVMLError_NotFound"
    assert nvml(f"set_limit({str(group)!r}, {GIB}, soft={2 * GIB})") == "NVMLError_InvalidArgument"
    cards.control("unsupported 0 memory-limits")
    assert nvml(f"set_limit({str(group)!r}, {GIB})") == "NVMLError_NotSupported"
    assert nvml(f"get_limit({str(group)!r})") == "NVMLError_NotSupported"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_other_users_may_read_limits_and_not_set_them(nvml, group):
    nvml("import os; os.setuid(65534)")
    nvml("N.nvmlShutdown(); N.nvmlInit(); h = N.nvmlDeviceGetHandleByIndex(0)")
    assert nvml(f"set_limit({str(group)!r}, {GIB}, device=h)") == "NVMLError_NoPermission"
    assert nvml(f"get_limit({str(group)!r}, device=h)") == [0, (1 << 64) - 1, 0]
