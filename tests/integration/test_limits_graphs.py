"""Memory inside graphs, sparse arrays and green contexts: counted from when it is taken until it is gone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import shim
from support.limits import CUDA, SERVER, Cards, Outside, Process

from gpuspawner.node.limits import abi

G, M = 1 << 30, 1 << 20
OUT_OF_MEMORY = 2

GRAPHS = """
def params(size):
    p = cu.CUDA_MEM_ALLOC_NODE_PARAMS()
    p.poolProps.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    p.poolProps.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    p.bytesize = size
    return p
def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None
def graph(*sizes, free=True):
    "A graph that takes memory of these sizes, one after the other; each is freed before the next is taken."
    g, last = ok(cu.cuGraphCreate(0)), []
    for size in sizes:
        p = params(size)
        node = cu.cuGraphAddMemAllocNode(g, last, len(last), p)
        assert int(node[0]) == 0, node[0]
        taken = node[2] if len(node) > 2 else p
        last = [node[1]]
        if free:
            last = [ok(cu.cuGraphAddMemFreeNode(g, last, 1, taken.dptr))]
    return g, taken
def launch(e): return int(cu.cuGraphLaunch(e, 0)[0])
def make(*sizes, free=True, flags=0): return ok(cu.cuGraphInstantiate(graph(*sizes, free=free)[0], flags))
RESERVED = cu.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
def kept(): return int(ok(cu.cuDeviceGetGraphMemAttribute(0, RESERVED)))
"""


@pytest.fixture
def one(out: Outside, made: Cards, context: int) -> Process:
    """A program with a context and 1 GiB besides."""
    out.limit(abi.CardLimit(made.uuids()[0], 1, G + context, context))
    return out.server(CUDA + GRAPHS)


def counted(one: Process) -> int:
    free, total = one.run("info()")
    return total - free


def test_a_graph_is_charged_when_it_is_launched_until_it_is_trimmed(one: Process, made: Cards, context: int) -> None:
    one.run("e = make(5 << 20)")
    assert counted(one) == made.used() == context  # nothing is taken yet
    assert one.run("launch(e)") == 0
    assert counted(one) == made.used() == context + 6 * M
    assert one.run("[launch(e) for _ in range(3)]") == [0, 0, 0]
    assert counted(one) == made.used() == context + 6 * M
    assert one.run("ok(cu.cuGraphExecDestroy(e))") is None
    assert counted(one) == made.used() == context + 6 * M  # kept for other graphs
    one.run("ok(cu.cuDeviceGraphMemTrim(0))")
    assert counted(one) == made.used() == context


def test_addresses_that_a_graph_uses_again_count_once(one: Process, made: Cards, context: int) -> None:
    one.run("e = make(8 << 20, 6 << 20, 8 << 20)")
    assert one.run("launch(e)") == 0
    assert counted(one) == made.used() == context + 8 * M


@pytest.mark.parametrize("way", ["launch(e)", "int(cu.cuGraphUpload(e, 0)[0])"])
def test_a_graph_that_does_not_fit_is_refused_and_nothing_is_taken(
    way: str, one: Process, made: Cards, context: int
) -> None:
    one.run("p = allocate(1 << 29)[1]; e = make((1 << 29) + 1)")
    assert one.run(way) == OUT_OF_MEMORY
    assert counted(one) == made.used() == context + G // 2
    assert one.run("release(p)") == 0
    assert one.run(way) == 0
    assert counted(one) == made.used() == context + G // 2 + 2 * M


def test_upload_while_instantiating_is_counted_and_refused_as_well(one: Process, made: Cards, context: int) -> None:
    one.run(
        "q = cu.CUDA_GRAPH_INSTANTIATE_PARAMS(); q.flags = 2\n"
        "def instantiate(size): return int(cu.cuGraphInstantiateWithParams(graph(size)[0], q)[0])"
    )
    assert one.run("instantiate((1 << 30) + 1)") == OUT_OF_MEMORY
    assert counted(one) == made.used() == context
    assert one.run("instantiate(1 << 30)") == 0
    assert counted(one) == made.used() == context + G


def test_what_is_kept_for_graphs_makes_room_before_anything_is_refused(one: Process, made: Cards, context: int) -> None:
    one.run("first, second = make(700 << 20), make(800 << 20)")
    assert one.run("[launch(first), launch(second), launch(first)]") == [0, 0, 0]
    assert counted(one) == made.used() <= context + G
    assert one.run("kept()") == 700 * M


def test_memory_that_outlives_its_graph_keeps_its_room(one: Process, made: Cards, context: int) -> None:
    one.run("g, p = graph(700 << 20, free=False); e = ok(cu.cuGraphInstantiate(g, 0)); f = make(800 << 20)")
    assert one.run("[launch(e), launch(f)]") == [0, OUT_OF_MEMORY]
    assert counted(one) == made.used() == context + 700 * M
    assert one.run("release(int(p.dptr))") == 0
    assert one.run("launch(f)") == 0
    assert counted(one) == made.used() == context + 800 * M


def test_the_context_takes_what_is_kept_for_graphs_along(one: Process, made: Cards) -> None:
    one.run("launch(make(100 << 20))")
    one.run("cu.cuDevicePrimaryCtxRelease(0)")
    assert made.used() == 0
    one.run("error, context = cu.cuDevicePrimaryCtxRetain(0); cu.cuCtxSetCurrent(context)")
    assert counted(one) == made.used()


# ---- what the simulated driver does not have, in front of one that accepts everything ----

SPARSE = """
import ctypes as c
lib = c.CDLL("libcuda.so.1")
u64 = c.c_uint64
class Map(c.Structure):
    _fields_ = [("resource_type", c.c_int), ("array", u64), ("kind", c.c_int), ("subresource", u64 * 4),
                ("operation", c.c_int), ("handle_type", c.c_int), ("handle", u64), ("offset", u64),
                ("devices", c.c_uint), ("flags", c.c_uint), ("reserved", c.c_uint * 2)]
class Description(c.Structure):
    _fields_ = [("width", c.c_size_t), ("height", c.c_size_t), ("depth", c.c_size_t), ("format", c.c_int),
                ("channels", c.c_uint), ("flags", c.c_uint)]
class Properties(c.Structure):
    _fields_ = [("type", c.c_int), ("handles", c.c_int), ("location", c.c_int * 2), ("rest", u64 * 2)]
def ok(code): assert code == 0, code
def out(name, *arguments):
    found = u64()
    ok(getattr(lib, name)(c.byref(found), *arguments))
    return found.value
def start():
    ok(lib.cuCtxSetCurrent(u64(out("cuDevicePrimaryCtxRetain", 0))))
def used():
    left, total = u64(), u64()
    ok(lib.cuMemGetInfo_v2(c.byref(left), c.byref(total)))
    return total.value - left.value
def create(size): return out("cuMemCreate", c.c_size_t(size), c.byref(Properties(1, 0, (c.c_int * 2)(1, 0))), u64(0))
def sparse(): return out("cuArray3DCreate_v2", c.byref(Description(1024, 1024, 0, 32, 4, 0x40)))
def map(array, handle, operation=1):
    ok(lib.cuMemMapArrayAsync(c.byref(Map(0, array, 0, (u64 * 4)(), operation, 0, handle)), 1, None))
"""


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Process]:
    """A program behind the shim in front of the null driver, with 1 GiB; a context counts as 1 MiB."""
    limit = abi.CardLimit(shim.UUID, 1, G, M)
    with (tmp_path / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", SERVER],
            env=shim.environment(tmp_path, shim.null_driver(tmp_path), limit),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    made = Process(process, tmp_path / "stderr")
    made.run(SPARSE)
    yield made
    made.close()


def test_a_sparse_array_holds_the_memory_that_is_mapped_into_it(bare: Process) -> None:
    bare.run("start(); a, b, h = sparse(), sparse(), create(6 << 20)")
    assert bare.run("used()") == 7 * M
    bare.run("map(a, h); map(a, h); map(b, h); ok(lib.cuMemRelease(u64(h)))")
    assert bare.run("used()") == 7 * M
    bare.run("map(a, 0, operation=2); ok(lib.cuArrayDestroy(u64(a)))")
    assert bare.run("used()") == 7 * M
    bare.run("ok(lib.cuArrayDestroy(u64(b)))")
    assert bare.run("used()") == M


def test_a_context_ends_the_hold_of_its_sparse_arrays(bare: Process) -> None:
    bare.run("start(); a, h = sparse(), create(6 << 20); map(a, h); ok(lib.cuMemRelease(u64(h)))")
    assert bare.run("used()") == 7 * M
    bare.run("ok(lib.cuDevicePrimaryCtxRelease_v2(0))")
    assert bare.run("used()") == 0


def test_a_green_context_holds_the_primary_one_and_its_memory_ends_with_that(bare: Process) -> None:
    bare.run("green = [out('cuGreenCtxCreate', u64(1), 0, 0) for _ in range(2)]")
    assert bare.run("used()") == M
    bare.run("ok(lib.cuCtxSetCurrent(u64(out('cuCtxFromGreenCtx', u64(green[0])))))")
    bare.run("p = out('cuMemAlloc_v2', c.c_size_t(2 << 20))")
    assert bare.run("used()") == 3 * M
    bare.run("ok(lib.cuGreenCtxDestroy(u64(green[0])))")
    assert bare.run("used()") == 3 * M
    bare.run("ok(lib.cuGreenCtxDestroy(u64(green[1])))")
    assert bare.run("used()") == 0


def test_a_green_context_that_cannot_be_made_is_not_charged(bare: Process) -> None:
    assert bare.run("lib.cuGreenCtxCreate(c.byref(u64()), None, 0, 0)") == 1
    assert bare.run("used()") == 0
