"""Memory of simulated cards: exact accounts, real data, nothing committed before it is written."""

from __future__ import annotations

import pytest

CONTEXT = 64 << 20
H100 = 81559 << 20
OUT_OF_MEMORY = 2
INVALID_VALUE = 1


def refusal(program, code):
    with pytest.raises(AssertionError) as caught:
        program(code)
    return caught.value.code


def test_the_account_is_exact(one, cards):
    assert one("info()") == [H100 - CONTEXT, H100]
    first = one("alloc(1)")
    assert one("used()") == CONTEXT + 512
    second = one("alloc(513)")
    assert one("used()") == CONTEXT + 512 + 1024
    assert cards.used_bytes() == CONTEXT + 512 + 1024
    one(f"cu.MemFree_v2({first}), cu.MemFree_v2({second}) and None")
    assert one("used()") == CONTEXT


def test_the_last_byte_can_be_had_and_no_more(one):
    one("pointer = alloc(info()[0])")
    assert one("info()[0]") == 0
    assert refusal(one, "alloc(1)") == OUT_OF_MEMORY
    assert one("info()[0]") == 0
    one("cu.MemFree_v2(pointer)")
    assert one("used()") == CONTEXT
    assert refusal(one, "alloc(info()[0] + 1)") == OUT_OF_MEMORY
    assert refusal(one, "alloc(2**64 - 1)") == OUT_OF_MEMORY
    assert refusal(one, "alloc(0)") == INVALID_VALUE
    assert one("used()") == CONTEXT


def test_a_program_sees_what_another_takes(one, program, cards):
    other = program()
    other("context = start()")
    assert one("used()") == 2 * CONTEXT
    other("pointer = alloc(10 * GIB)")
    assert one("used()") == 2 * CONTEXT + (10 << 30)
    assert refusal(one, "alloc(info()[0] + 512)") == OUT_OF_MEMORY
    other("cu.MemFree_v2(pointer)")
    assert one("used()") == 2 * CONTEXT


def test_cards_are_accounted_apart(one, program, cards):
    other = program()
    other("context = start(1)")
    other("alloc(GIB)")
    assert (cards.used_bytes(0), cards.used_bytes(1)) == (CONTEXT, CONTEXT + (1 << 30))


@pytest.mark.parametrize("how", ["kill", "close"])
def test_a_program_that_ends_gives_back_everything(one, program, cards, how):
    other = program()
    other("context = start()")
    other("[alloc(GIB) for _ in range(20)] and None")
    assert cards.used_bytes() == 2 * CONTEXT + (20 << 30)
    getattr(other, how)()
    cards.await_used(CONTEXT)


def test_a_child_that_inherited_the_socket_does_not_keep_a_dead_parents_memory(one, program, cards):
    other = program()
    other("context = start()")
    other("alloc(GIB) and None")
    # Without fork handlers, as a program with its own way to fork does it: the child keeps the descriptors.
    child = other("import ctypes, os, time\nchild = ctypes.CDLL(None)._Fork()\nif not child: time.sleep(60)")
    child = other("child")
    try:
        other.kill()
        cards.await_used(CONTEXT)
    finally:
        import os
        import signal

        os.kill(child, signal.SIGKILL)


def test_a_forked_child_starts_afresh(one, cards):
    one("alloc(GIB) and None")
    one(
        """
import os
read, write = os.pipe()
child = os.fork()
if not child:
    first = code_of("MemGetInfo_v2", byref(c_size_t()), byref(c_size_t()))
    start()
    old = code_of("CtxSetCurrent", context)
    pointer = alloc(2 * GIB)
    put(pointer, b"child")
    os.write(write, json.dumps([first, old, used(), get(pointer, 5).decode()]).encode())
    os._exit(0)
said = json.loads(os.read(read, 1000))
os.waitpid(child, 0)
"""
    )
    not_initialized, invalid_context = 3, 201
    assert one("said") == [not_initialized, invalid_context, 2 * CONTEXT + (3 << 30), "child"]
    cards.await_used(CONTEXT + (1 << 30))
    assert one("used()") == CONTEXT + (1 << 30)


def test_data_comes_back(one):
    one("pointer = alloc(3 * MIB)")
    one("data = os.urandom(3 * MIB)")
    one("put(pointer, data)")
    assert one("get(pointer, len(data)) == data")
    one("other = alloc(3 * MIB)")
    one("cu.MemcpyDtoD_v2(other + 100, pointer, 1000)")
    assert one("get(other + 100, 1000) == data[:1000]")
    one("cu.MemcpyPeer(other, context, pointer + 5, context, 50)")
    assert one("get(other, 50) == data[5:55]")


def test_copies_outside_an_allocation_are_refused(one):
    one("pointer = alloc(1000)")
    assert one("code_of('MemcpyHtoD_v2', pointer + 1, bytes(1000), 1000)") == INVALID_VALUE
    assert one("code_of('MemcpyDtoH_v2', ctypes.create_string_buffer(10), pointer - 8, 8)") == INVALID_VALUE
    assert one("code_of('MemsetD8_v2', pointer + 512, 1, 512)") == INVALID_VALUE
    one("cu.MemFree_v2(pointer)")
    assert one("code_of('MemcpyHtoD_v2', pointer, bytes(1), 1)") == INVALID_VALUE
    assert one("code_of('MemFree_v2', pointer)") == INVALID_VALUE
    assert one("code_of('MemFree_v2', 0)") == 0


def test_the_middle_of_an_allocation_cannot_be_freed_but_is_found(one):
    one("pointer = alloc(5000)")
    assert one("code_of('MemFree_v2', pointer + 512)") == INVALID_VALUE
    one("base, size = c_uint64(), c_size_t()\ncu.MemGetAddressRange_v2(byref(base), byref(size), pointer + 4999)")
    assert one("[base.value == pointer, size.value]") == [True, 5000]
    not_found = 500
    assert one("code_of('MemGetAddressRange_v2', byref(base), byref(size), pointer + 5000)") == not_found


def test_memory_sets(one):
    one("pointer = alloc(4096 * 4)")
    one("cu.MemsetD8_v2(pointer, 0xab, 4096 * 4)")
    one("cu.MemsetD16_v2(pointer + 2, 0x1234, 3)")
    one("cu.MemsetD32_v2(pointer + 8, 0xdeadbeef, 1)")
    assert one("get(pointer, 13)") == "abab341234123412efbeaddeab"
    one("cu.MemsetD8_v2(pointer + 1, 0, 4096 * 3)")
    assert one("get(pointer, 4096 * 4) == b'\\xab' + bytes(4096 * 3) + b'\\xab' * (4096 - 1)")
    one("cu.MemsetD2D8_v2(pointer, 100, 7, 3, 2)")
    assert one("[get(pointer, 4).hex(), get(pointer + 100, 4).hex()]") == ["07070700", "07070700"]
    assert one("code_of('MemsetD32_v2', pointer + 1, 1, 1)") == INVALID_VALUE


def test_nothing_is_committed_before_it_is_written(one):
    one("before = resident_bytes()")
    one("pointer = alloc(60 * GIB)")
    one("cu.MemsetD8_v2(pointer, 0, 60 * GIB)")
    one("put(pointer + 59 * GIB, b'far')")
    assert one("[get(pointer + 59 * GIB, 3).decode(), get(pointer, 1).hex()]") == ["far", "00"]
    assert one("resident_bytes() - before") < 16 << 20


def test_freed_pages_go_back_to_the_machine_and_read_as_zero(one):
    one("pointer = alloc(64 * MIB)")
    one("before = resident_bytes()")
    one("cu.MemsetD8_v2(pointer, 1, 64 * MIB)")
    assert one("resident_bytes() - before") > 60 << 20
    one("cu.MemFree_v2(pointer)")
    assert one("resident_bytes() - before") < 8 << 20


def test_many_allocations_never_overlap(one):
    one(
        """
import random
random.seed(7)
live = {}
for step in range(6000):
    if live and random.random() < 0.45:
        pointer = random.choice(list(live))
        size = live.pop(pointer)
        tag = pointer.to_bytes(8, "little")
        assert get(pointer, 8) == tag and get(pointer + size - 8, 8) == tag
        cu.MemFree_v2(pointer)
    else:
        size = random.choice((8, 100, 512, 4000, 4096, 70000, 3 * MIB))
        pointer = alloc(size)
        live[pointer] = size
        put(pointer, pointer.to_bytes(8, "little"))
        put(pointer + size - 8, pointer.to_bytes(8, "little"))
spans = sorted((p, p + s) for p, s in live.items())
assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:]))
expected = sum((s + 511) // 512 * 512 for s in live.values())
"""
    )
    assert one("used() - expected") == CONTEXT


def test_pitch(one):
    one("pointer, pitch = c_uint64(), c_size_t()\ncu.MemAllocPitch_v2(byref(pointer), byref(pitch), 1000, 7, 4)")
    assert one("pitch.value") == 1024
    assert one("used()") == CONTEXT + 7 * 1024


def test_managed_memory_is_the_hosts_too(one):
    one("pointer = out('MemAllocManaged', c_uint64, 10000, 1)")
    assert one("used()") == CONTEXT + 10240
    one("ctypes.memmove(pointer, b'from the host', 13)")
    assert one("get(pointer, 13).decode()") == "from the host"
    assert one("code_of('MemPrefetchAsync_v2', pointer, 10000, 0, 0, 0)") == 0
    one("cu.MemFree_v2(pointer)")
    assert one("used()") == CONTEXT


def test_host_memory_takes_none_of_the_card(one):
    one("pointer = out('MemHostAlloc', c_void_p, 1 << 20, 0)")
    assert one("used()") == CONTEXT
    one("device = alloc(10)")
    one("ctypes.memmove(pointer, b'0123456789', 10)")
    one("cu.MemcpyHtoDAsync_v2(device, pointer, 10, 0)")
    assert one("get(device, 10).decode()") == "0123456789"
    host, on_device = 1, 2
    memory_type = "out('PointerGetAttribute', c_uint, 2, {})"
    assert [one(memory_type.format("pointer")), one(memory_type.format("device"))] == [host, on_device]
    one("cu.MemFreeHost(pointer)")
    assert refusal(one, memory_type.format("pointer")) == INVALID_VALUE


def test_registered_host_memory(one):
    one("buffer = ctypes.create_string_buffer(b'registered', 5000)\naddress = ctypes.addressof(buffer)")
    one("cu.MemHostRegister_v2(address, 5000, 0)")
    already, not_registered = 712, 713
    assert one("code_of('MemHostRegister_v2', address + 100, 10, 0)") == already
    assert one("out('MemHostGetDevicePointer_v2', c_uint64, address, 0) == address")
    one("cu.MemHostUnregister(address)")
    assert one("code_of('MemHostUnregister', address)") == not_registered


def test_destroying_a_context_frees_its_memory(one, cards):
    one("second = c_void_p()\ncu.CtxCreate_v2(byref(second), 0, 0)")
    one("alloc(GIB) and None")
    assert one("used()") == 2 * CONTEXT + (1 << 30)
    one("cu.CtxDestroy_v2(second)")
    assert one("used()") == CONTEXT
    assert one("code_of('CtxPushCurrent_v2', second)") == 201
    one("alloc(GIB) and None")
    one("cu.DevicePrimaryCtxReset_v2(0)")
    assert cards.used_bytes() == 0
    destroyed = 709
    assert refusal(one, "alloc(1)") == destroyed


def test_a_context_that_does_not_fit_is_refused(one, program):
    one("alloc(info()[0] - 32 * MIB) and None")
    other = program()
    assert refusal(other, "start()") == OUT_OF_MEMORY
    assert one("info()[0]") == 32 << 20
