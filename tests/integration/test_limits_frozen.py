"""A session whose memory is frozen: nothing new, none shown as free, and what it has goes on."""

from __future__ import annotations

from pathlib import Path

from support.limits import CUDA, cards, outside

from gpuspawner.node.limits import abi

G = 1 << 30
OUT_OF_MEMORY = 2

_EVERY_WAY = """
def asynchronous(size):
    error, pointer = cu.cuMemAllocAsync(size, 0)
    return int(error)
def physical(size):
    prop = cu.CUmemAllocationProp()
    prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    return int(cu.cuMemCreate(size, prop, 0)[0])
import pynvml as n
n.nvmlInit()
def memory():
    found = n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0))
    return [found.free, found.total, found.used]
"""


def test_frozen_and_thawed(tmp_path: Path) -> None:
    with cards(tmp_path / "cards", "1*h100-80gb") as made, outside(tmp_path / "out", made) as out:
        uuid = made.uuids()[0]
        out.limit(abi.CardLimit(uuid, 2, 8 * G))
        one = out.server(CUDA + _EVERY_WAY)
        error, held = one.run(f"allocate({G})")
        assert error == 0
        assert one.run(f"asynchronous({G})") == 0
        assert one.run("[int(each[0]) for each in (cu.cuMemPoolTrimTo(cu.cuDeviceGetDefaultMemPool(0)[1], 0),)]") == [0]

        out.limit(abi.CardLimit(uuid, 2, 8 * G, frozen=True))
        assert one.run("info()") == [0, 8 * G]
        assert one.run("memory()")[:2] == [0, 8 * G]
        assert one.run("[allocate(512)[0], asynchronous(512), physical(2 << 20)]") == [OUT_OF_MEMORY] * 3
        assert one.run("int(cu.cuCtxCreate(None, 0, 0)[0])") == OUT_OF_MEMORY
        bare = out.server("from cuda.bindings import driver as cu; cu.cuInit(0)")
        assert bare.run("int(cu.cuDevicePrimaryCtxRetain(0)[0])") == OUT_OF_MEMORY
        # What it holds is still its own, and what it frees is free to nobody as long as it is frozen.
        assert one.run(f"int(cu.cuMemsetD8({held}, 7, 1024)[0])") == 0
        assert one.run(f"release({held})") == 0
        assert one.run("info()[0]") == 0
        assert one.run("allocate(512)[0]") == OUT_OF_MEMORY

        out.limit(abi.CardLimit(uuid, 2, 8 * G))
        assert one.run("info()[0]") == 7 * G
        assert one.run(f"allocate({6 * G})[0]") == 0
