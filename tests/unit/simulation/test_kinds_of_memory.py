"""Pools, virtual memory, arrays: what they take, what they give back, and that data survives."""

from __future__ import annotations

import pytest

CONTEXT = 64 << 20
MIB = 1 << 20
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
RESERVED, RESERVED_HIGH, USED, USED_HIGH, THRESHOLD = 5, 6, 7, 8, 4


def attribute(program, number, pool="pool"):
    program(f"value = c_uint64()\ncu.MemPoolGetAttribute({pool}, {number}, byref(value))")
    return program("value.value")


@pytest.fixture
def pooled(one):
    one("pool = c_void_p(out('DeviceGetDefaultMemPool', c_void_p, 0))")
    return one


def test_a_pool_takes_two_mebibytes_at_a_time(pooled):
    pooled("pointer = out('MemAllocAsync', c_uint64, 1000, 0)")
    assert (attribute(pooled, USED), attribute(pooled, RESERVED)) == (1024, 2 * MIB)
    assert pooled("used()") == CONTEXT + 2 * MIB
    pooled("second = out('MemAllocAsync', c_uint64, 2 * MIB, 0)")
    assert (attribute(pooled, USED), attribute(pooled, RESERVED)) == (2 * MIB + 1024, 4 * MIB)
    pooled("put(pointer, b'pooled')")
    assert pooled("get(pointer, 6).decode()") == "pooled"
    pooled("cu.MemFreeAsync(pointer, 0)\ncu.MemFreeAsync(second, 0)")
    assert attribute(pooled, USED) == 0
    assert pooled("used()") == CONTEXT + 4 * MIB  # kept until somebody waits
    pooled("cu.StreamSynchronize(0)")
    assert pooled("used()") == CONTEXT
    assert (attribute(pooled, USED_HIGH), attribute(pooled, RESERVED_HIGH)) == (2 * MIB + 1024, 4 * MIB)


def test_a_pool_keeps_what_its_threshold_says_until_it_is_needed(pooled):
    pooled(f"cu.MemPoolSetAttribute(pool, {THRESHOLD}, byref(c_uint64(2**64 - 1)))")
    pooled("pointer = out('MemAllocAsync', c_uint64, GIB, 0)\ncu.MemFreeAsync(pointer, 0)\ncu.CtxSynchronize()")
    assert pooled("used()") == CONTEXT + (1 << 30)
    pooled("pointer = alloc(info()[1] - 64 * MIB)")  # more than is free: the pool gives up what it keeps
    assert pooled("info()[0]") == 0
    assert attribute(pooled, RESERVED) == 0


def test_a_pool_that_cannot_grow_is_left_as_it_was(pooled):
    pooled("rest = alloc(info()[0] - 3 * MIB)")
    pooled("pointer = out('MemAllocAsync', c_uint64, MIB, 0)")
    assert pooled("code_of('MemAllocAsync', byref(c_uint64()), 2 * MIB, 0)") == OUT_OF_MEMORY
    assert (attribute(pooled, USED), attribute(pooled, RESERVED)) == (MIB, 2 * MIB)
    assert pooled("info()[0]") == MIB


def test_an_own_pool_goes_with_its_last_allocation(one):
    one(
        """
class Properties(ctypes.Structure):
    _fields_ = [("kind", c_int), ("handles", c_int), ("location", c_int * 2), ("win32", c_void_p),
                ("most", c_size_t), ("rest", ctypes.c_char * 56)]
properties = Properties(kind=1, location=(c_int * 2)(1, 0), most=4 * MIB)
pool = c_void_p(out("MemPoolCreate", c_void_p, byref(properties)))
pointer = out("MemAllocFromPoolAsync", c_uint64, 3 * MIB, pool, 0)
"""
    )
    assert one("used()") == CONTEXT + 4 * MIB
    assert one("code_of('MemAllocFromPoolAsync', byref(c_uint64()), 2 * MIB, pool, 0)") == OUT_OF_MEMORY
    one("cu.MemPoolDestroy(pool)")
    assert one("code_of('MemPoolTrimTo', pool, 0)") == INVALID_VALUE
    assert one("used()") == CONTEXT + 4 * MIB
    one("cu.MemFreeAsync(pointer, 0)")
    assert one("used()") == CONTEXT


@pytest.fixture
def virtual(one):
    one(
        """
class Location(ctypes.Structure):
    _fields_ = [("kind", c_int), ("id", c_int)]
class Properties(ctypes.Structure):
    _fields_ = [("kind", c_int), ("handles", c_int), ("location", Location), ("win32", c_void_p), ("flags", c_uint64)]
class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]
properties = Properties(kind=1, location=Location(1, 0))
read_write = Access(Location(1, 0), 3)
STEP = out("MemGetAllocationGranularity", c_size_t, byref(properties), 0)
base = out("MemAddressReserve", c_uint64, 8 * STEP, 0, 0, 0)
handle = out("MemCreate", c_uint64, 2 * STEP, byref(properties), 0)
"""
    )
    return one


def test_virtual_memory_is_charged_from_creation_until_its_last_use_has_gone(virtual):
    assert virtual("STEP") == 2 * MIB
    assert virtual("used()") == CONTEXT + 4 * MIB
    virtual("cu.MemMap(base, 2 * STEP, 0, handle, 0)")
    virtual("cu.MemRelease(handle)")
    assert virtual("used()") == CONTEXT + 4 * MIB  # still mapped
    virtual("cu.MemUnmap(base, 2 * STEP)")
    assert virtual("used()") == CONTEXT
    virtual("cu.MemAddressFree(base, 8 * STEP)")


def test_mapped_memory_needs_access_and_may_be_mapped_twice(virtual):
    virtual("cu.MemMap(base, 2 * STEP, 0, handle, 0)")
    assert virtual("code_of('MemcpyHtoD_v2', base, b'x', 1)") == INVALID_VALUE
    virtual("cu.MemSetAccess(base, 2 * STEP, byref(read_write), 1)")
    virtual("put(base + STEP, b'seen twice')")
    virtual("cu.MemMap(base + 4 * STEP, STEP, STEP, handle, 0)")
    virtual("cu.MemSetAccess(base + 4 * STEP, STEP, byref(read_write), 1)")
    assert virtual("get(base + 4 * STEP, 10).decode()") == "seen twice"
    assert virtual("used()") == CONTEXT + 4 * MIB
    assert virtual("code_of('MemMap', base + STEP, STEP, 0, handle, 0)") == INVALID_VALUE  # taken
    assert virtual("code_of('MemAddressFree', base, 8 * STEP)") == INVALID_VALUE  # in use


def test_a_copy_may_run_over_neighbouring_mappings(virtual):
    virtual("second = out('MemCreate', c_uint64, STEP, byref(properties), 0)")
    virtual("cu.MemMap(base, 2 * STEP, 0, handle, 0)\ncu.MemMap(base + 2 * STEP, STEP, 0, second, 0)")
    virtual("cu.MemSetAccess(base, 3 * STEP, byref(read_write), 1)")
    virtual("data = os.urandom(3 * STEP)\nput(base, data)")
    assert virtual("get(base, 3 * STEP) == data")
    assert virtual("code_of('MemcpyHtoD_v2', base + 1, data, 3 * STEP)") == INVALID_VALUE


def test_fresh_virtual_memory_reads_as_zero(virtual):
    virtual("cu.MemMap(base, 2 * STEP, 0, handle, 0)\ncu.MemSetAccess(base, 2 * STEP, byref(read_write), 1)")
    virtual("put(base, b'secret')\ncu.MemUnmap(base, 2 * STEP)\ncu.MemRelease(handle)")
    virtual("handle = out('MemCreate', c_uint64, 2 * STEP, byref(properties), 0)")
    virtual("cu.MemMap(base, 2 * STEP, 0, handle, 0)\ncu.MemSetAccess(base, 2 * STEP, byref(read_write), 1)")
    assert virtual("get(base, 6)") == "00" * 6


def test_zeroing_virtual_memory_commits_nothing(virtual):
    virtual("big = out('MemCreate', c_uint64, 4 * STEP, byref(properties), 0)")
    virtual("cu.MemMap(base, 4 * STEP, 0, big, 0)\ncu.MemSetAccess(base, 4 * STEP, byref(read_write), 1)")
    virtual("before = resident_bytes()\ncu.MemsetD8_v2(base, 7, 4 * STEP)")
    assert virtual("resident_bytes() - before") >= 7 * MIB
    virtual("cu.MemsetD8_v2(base + 1, 0, 4 * STEP - 2)")
    assert virtual("resident_bytes() - before") < MIB
    assert virtual("[get(base, 2).hex(), get(base + 4 * STEP - 2, 2).hex()]") == ["0700", "0007"]


def test_virtual_memory_sizes_are_checked(virtual):
    assert virtual("code_of('MemCreate', byref(c_uint64()), STEP + 1, byref(properties), 0)") == INVALID_VALUE
    virtual("whole = info()[1] // STEP * STEP")
    assert virtual("code_of('MemCreate', byref(c_uint64()), whole, byref(properties), 0)") == OUT_OF_MEMORY
    assert virtual("code_of('MemMap', base, 4 * STEP, 0, handle, 0)") == INVALID_VALUE
    assert virtual("code_of('MemRelease', handle)") == 0
    assert virtual("code_of('MemRelease', handle)") == INVALID_VALUE


def test_arrays_hold_rows(one):
    one(
        """
class Descriptor(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint)]
class Copy(ctypes.Structure):
    _fields_ = [(f"{end}_{name}", kind) for end in ("src", "dst") for name, kind in
                (("x", c_size_t), ("y", c_size_t), ("type", c_int), ("host", c_void_p), ("device", c_uint64),
                 ("array", c_void_p), ("pitch", c_size_t))] + [("width", c_size_t), ("height", c_size_t)]
FLOAT, HOST, DEVICE, ARRAY = 0x20, 1, 2, 3
array = c_void_p(out("ArrayCreate_v2", c_void_p, byref(Descriptor(10, 6, FLOAT, 1))))
data = os.urandom(240)
copy = Copy(src_type=HOST, src_host=ctypes.cast(c_char_p(data), c_void_p), src_pitch=40, dst_type=ARRAY,
            dst_array=array, width=40, height=6)
cu.Memcpy2D_v2(byref(copy))
device = alloc(4 * 20)
copy = Copy(src_type=ARRAY, src_array=array, src_x=8, src_y=1, dst_type=DEVICE, dst_device=device, dst_pitch=20,
            width=20, height=4)
cu.Memcpy2D_v2(byref(copy))
expected = b"".join(data[(1 + row) * 40 + 8 : (1 + row) * 40 + 28] for row in range(4))
"""
    )
    assert one("get(device, 80) == expected")
    assert one("used()") == CONTEXT + 512 + 512
    one("copy.src_x = 24")
    assert one("code_of('Memcpy2D_v2', byref(copy))") == INVALID_VALUE  # over the row's end
    one("cu.ArrayDestroy(array)")
    assert one("used()") == CONTEXT + 512
    assert one("code_of('ArrayDestroy', array)") == 400


def test_mipmapped_arrays(one):
    one(
        """
class Descriptor(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_int),
                ("channels", c_uint), ("flags", c_uint)]
mipmap = c_void_p(out("MipmappedArrayCreate", c_void_p, byref(Descriptor(256, 256, 0, 1, 4, 0)), 3))
level = c_void_p(out("MipmappedArrayGetLevel", c_void_p, mipmap, 2))
found = Descriptor()
cu.Array3DGetDescriptor_v2(byref(found), level)
"""
    )
    assert one("[found.width, found.height]") == [64, 64]
    assert one("used()") == CONTEXT + 4 * (256**2 + 128**2 + 64**2)
    one("cu.MipmappedArrayDestroy(mipmap)")
    assert one("used()") == CONTEXT
