"""MIG on simulated cards: slices made and used through the C interfaces."""

from __future__ import annotations

import pytest

from gpuspawner.simulation import SimulatedCards

H100 = 81559 << 20
CONTEXT = 64 << 20

MIG = """
import pynvml as N
N.nvmlInit()
h = N.nvmlDeviceGetHandleByIndex(0)
def fault(name, *arguments):
    try:
        getattr(N, "nvml" + name)(*arguments)
    except N.NVMLError as error:
        return type(error).__name__
def profiles():
    found = []
    for number in range(N.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            p = N.nvmlDeviceGetGpuInstanceProfileInfo(h, number)
        except N.NVMLError_NotSupported:
            continue
        found.append([p.name, p.id, p.sliceCount, p.instanceCount, p.multiprocessorCount, p.memorySizeMB])
    return found
def cut(profile, compute):
    gpu = N.nvmlDeviceCreateGpuInstance(h, profile)
    N.nvmlGpuInstanceCreateComputeInstance(gpu, compute)
    return gpu
def slices():
    found = []
    for index in range(N.nvmlDeviceGetMaxMigDeviceCount(h)):
        try:
            found.append(N.nvmlDeviceGetMigDeviceHandleByIndex(h, index))
        except N.NVMLError_NotFound:
            pass
    return found
def uuids():
    return [N.nvmlDeviceGetUUID(s) for s in slices()]
"""


@pytest.fixture
def mig(program):
    running = program()
    running(MIG)
    return running


def test_profiles_are_those_of_the_vendors_tables(mig, program):
    found = mig("profiles()")
    assert [row[:5] for row in found] == [
        ["MIG 1g.10gb", 19, 1, 7, 16],
        ["MIG 2g.20gb", 14, 2, 3, 32],
        ["MIG 3g.40gb", 9, 3, 2, 60],
        ["MIG 4g.40gb", 5, 4, 1, 64],
        ["MIG 7g.80gb", 0, 7, 1, 132],
        ["MIG 1g.20gb", 15, 1, 4, 26],
    ]
    assert [row[5] for row in found] == [H100 * n // 8 >> 20 for n in (1, 2, 4, 4, 8, 2)]
    for cards, names in (
        ("1*a100-40gb", ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "1g.10gb"]),
        ("1*h200-141gb", ["1g.18gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb", "1g.35gb"]),
        ("1*v100-32gb", []),
    ):
        with SimulatedCards(cards) as others:
            other = program(others)
            other(MIG)
            assert [row[0] for row in other("profiles()")] == [f"MIG {name}" for name in names]


def test_slices_are_made_used_and_destroyed(mig, program):
    assert mig("N.nvmlDeviceGetMigMode(h)") == [0, 0]
    assert mig("fault('DeviceCreateGpuInstance', h, 19)") == "NVMLError_NotSupported"
    mig("N.nvmlDeviceSetMigMode(h, 1)")
    mig("small, big = cut(19, 0), cut(9, 2)")
    assert mig("[N.nvmlDeviceGetName(s) for s in slices()]") == [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb (simulated)",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb (simulated)",
    ]
    first, second = mig("uuids()")
    assert first.startswith("MIG-51a1ca4d-")
    assert len(first) == 40
    assert first != second
    user = program(CUDA_VISIBLE_DEVICES=first)
    user("context = start()")
    assert user("info()")[1] == H100 // 8 >> 20 << 20
    with pytest.raises(AssertionError):
        user("alloc(12 * GIB)")
    user("alloc(9 * GIB)")
    used = CONTEXT + (9 << 30)
    memory = "[N.nvmlDeviceGetMemoryInfo(s).used for s in {}]"
    assert mig(memory.format("slices()")) == [used, 0]
    assert mig(memory.format("[h]")) == [used]
    processes = "[[p.pid, p.usedGpuMemory, p.gpuInstanceId, p.computeInstanceId] for p in "
    assert mig(processes + "N.nvmlDeviceGetComputeRunningProcesses(h)]") == [[user.pid, used, 1, 0]]
    assert mig(processes + "N.nvmlDeviceGetComputeRunningProcesses(slices()[0])]") == [[user.pid, used, 1, 0]]
    assert mig("N.nvmlDeviceGetComputeRunningProcesses(slices()[1])") == []
    assert mig("fault('DeviceGetUtilizationRates', slices()[0])") == "NVMLError_NotSupported"
    assert (
        mig("fault('ComputeInstanceDestroy', N.nvmlGpuInstanceGetComputeInstanceById(small, 0))") == "NVMLError_InUse"
    )
    user.kill()
    mig("import time\nwhile N.nvmlDeviceGetMemoryInfo(h).used: time.sleep(0.01)")
    assert mig("fault('GpuInstanceDestroy', small)") == "NVMLError_InUse"
    mig("for g in (small, big): N.nvmlComputeInstanceDestroy(N.nvmlGpuInstanceGetComputeInstanceById(g, 0))")
    mig("for g in (small, big): N.nvmlGpuInstanceDestroy(g)")
    assert mig("uuids()") == []
    mig("N.nvmlDeviceSetMigMode(h, 0)")
    assert mig("N.nvmlDeviceGetMigMode(h)") == [0, 0]


def test_a_card_holds_seven_small_slices_and_no_eighth(mig):
    mig("N.nvmlDeviceSetMigMode(h, 1)")
    assert mig("N.nvmlDeviceGetGpuInstanceRemainingCapacity(h, 19)") == 7
    mig("made = [cut(19, 0) for _ in range(7)]")
    assert mig("fault('DeviceCreateGpuInstance', h, 19)") == "NVMLError_InsufficientResources"
    assert mig("N.nvmlDeviceGetGpuInstanceRemainingCapacity(h, 19)") == 0
    assert len(set(mig("uuids()"))) == 7


def test_two_halves_fit_and_uuids_come_back_with_the_place(mig):
    mig("N.nvmlDeviceSetMigMode(h, 1)")
    mig("one, two = cut(9, 2), cut(9, 2)")
    before = mig("uuids()")
    assert mig("fault('DeviceCreateGpuInstance', h, 9)") == "NVMLError_InsufficientResources"
    mig("N.nvmlComputeInstanceDestroy(N.nvmlGpuInstanceGetComputeInstanceById(one, 0)); N.nvmlGpuInstanceDestroy(one)")
    mig("one = cut(9, 2)")
    assert mig("uuids()") == before


def test_a_card_that_is_cut_up_is_not_used_whole(mig, program):
    mig("N.nvmlDeviceSetMigMode(h, 1)")
    whole = mig("N.nvmlDeviceGetUUID(h)")
    assert program(CUDA_VISIBLE_DEVICES=whole)("code_of('Init', 0)") == 100
    mig("made = cut(14, 1)")
    for visible in ("0", whole, mig("uuids()[0]"), f"{mig('uuids()[0]')},1"):
        user = program(CUDA_VISIBLE_DEVICES=visible)
        user("context = start()")
        assert user("info()")[1] == H100 // 4 >> 20 << 20, visible
