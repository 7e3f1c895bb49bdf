"""Graphs of memory nodes: memory comes with the first launch, stays for graphs, and goes when it is trimmed."""

from __future__ import annotations

import pytest

CONTEXT = 64 << 20
MIB = 1 << 20
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
USED, USED_HIGH, RESERVED, RESERVED_HIGH = 0, 1, 2, 3

PROGRAM = """
class Params(ctypes.Structure):
    _fields_ = [("kind", c_int), ("handles", c_int), ("location", c_int * 2), ("rest", ctypes.c_char * 72),
                ("access", c_void_p), ("access_count", c_size_t), ("size", c_size_t), ("pointer", c_uint64)]
def graph(size, free=True):
    made = c_void_p(out("GraphCreate", c_void_p, 0))
    params = Params(kind=1, location=(c_int * 2)(1, 0), size=size)
    node = c_void_p(out("GraphAddMemAllocNode", c_void_p, made, None, 0, byref(params)))
    if free:
        out("GraphAddMemFreeNode", c_void_p, made, byref(node), 1, c_uint64(params.pointer))
    return made, params.pointer
def ready(made, flags=0):
    return c_void_p(out("GraphInstantiateWithFlags", c_void_p, made, c_uint64(flags)))
def attribute(number):
    value = c_uint64()
    cu.DeviceGetGraphMemAttribute(0, number, byref(value))
    return value.value
"""


@pytest.fixture
def graphs(one):
    one(PROGRAM)
    return one


def test_memory_comes_with_the_first_launch_and_goes_with_the_trim(graphs):
    graphs("made, pointer = graph(3 * MIB)\ne = ready(made)")
    assert graphs("used()") == CONTEXT
    graphs("cu.GraphLaunch(e, 0)\ncu.GraphLaunch(e, 0)")
    assert graphs("used()") == CONTEXT + 4 * MIB
    assert graphs(f"[attribute(n) for n in ({USED}, {RESERVED})]") == [4 * MIB, 4 * MIB]
    graphs("cu.GraphDestroy(made)\ncu.GraphLaunch(e, 0)\ncu.GraphExecDestroy(e)")
    assert graphs(f"[attribute(n) for n in ({USED}, {RESERVED})]") == [0, 4 * MIB]
    graphs("cu.DeviceGraphMemTrim(0)")
    assert graphs("used()") == CONTEXT
    assert graphs(f"[attribute(n) for n in ({RESERVED}, {RESERVED_HIGH})]") == [0, 4 * MIB]


def test_what_a_graph_leaves_allocated_is_memory_like_other(graphs):
    graphs("made, pointer = graph(3 * MIB, free=False)\ne = ready(made)\ncu.GraphLaunch(e, 0)")
    graphs("put(pointer, b'in a graph')")
    assert graphs("get(pointer, 10).decode()") == "in a graph"
    assert graphs("code_of('GraphLaunch', e, 0)") == INVALID_VALUE  # it is still allocated
    graphs("cu.DeviceGraphMemTrim(0)")
    assert graphs("used()") == CONTEXT + 4 * MIB
    graphs("cu.MemFree_v2(c_uint64(pointer))")
    assert graphs("code_of('MemFree_v2', c_uint64(pointer))") == INVALID_VALUE
    graphs("cu.GraphLaunch(e, 0)\ncu.MemFreeAsync(c_uint64(pointer), 0)\ncu.DeviceGraphMemTrim(0)")
    assert graphs("used()") == CONTEXT
    graphs("f = ready(made, 1)\ncu.GraphLaunch(f, 0)\ncu.GraphLaunch(f, 0)")  # frees by itself


def test_a_graph_that_does_not_fit_is_refused(graphs):
    graphs("made, _ = graph(2 * MIB)\ne = ready(made)\nrest = alloc(info()[0] - MIB)")
    assert graphs("code_of('GraphLaunch', e, 0)") == OUT_OF_MEMORY
    assert graphs("info()[0]") == MIB


def test_graphs_end_with_the_last_context(graphs, cards):
    graphs("made, _ = graph(8 * MIB, free=False)\ne = ready(made)\ncu.GraphLaunch(e, 0)")
    graphs("cu.DevicePrimaryCtxReset_v2(0)")
    graphs("context = start()")
    assert graphs("used()") == CONTEXT
    assert graphs(f"attribute({RESERVED})") == 0
