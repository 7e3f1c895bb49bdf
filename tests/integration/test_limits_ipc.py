"""Memory that one process exports and another opens: its maker pays for it, and nobody else."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench import shim
from support.limits import CUDA, Cards, Outside

from gpuspawner.node.limits import abi

G = 1 << 30
NOT_SUPPORTED = 801

# What bench/null_driver.c has not. The handle is the address, and an opened one lies elsewhere, as with a real driver.
_IPC = """
#include <stdint.h>
#include <string.h>
#define API __attribute__((visibility("default"))) int
typedef struct { char bytes[64]; } handle;
API cuIpcGetMemHandle(handle *out, unsigned long long address) { memcpy(out->bytes, &address, 8); return 0; }
API cuIpcOpenMemHandle_v2(unsigned long long *out, handle from, unsigned flags)
{
    memcpy(out, from.bytes, 8);
    *out += 1ull << 40;
    return flags != 1;
}
API cuIpcCloseMemHandle(unsigned long long address) { return address < 1ull << 40; }
"""

_PROGRAM = """
import ctypes as c
lib = c.CDLL('libcuda.so.1')
class Handle(c.Structure): _fields_ = [('bytes', c.c_char * 64)]
context, address, handle = c.c_void_p(), c.c_uint64(), Handle()
assert lib.cuInit(0) == 0 and lib.cuDevicePrimaryCtxRetain(c.byref(context), 0) == 0
assert lib.cuCtxSetCurrent(context) == 0
def give(size):
    assert lib.cuMemAlloc_v2(c.byref(address), c.c_size_t(size)) == 0
    assert lib.cuIpcGetMemHandle(c.byref(handle), address) == 0
    return bytes(handle).hex()
def take(text):
    return lib.cuIpcOpenMemHandle_v2(c.byref(address), Handle.from_buffer_copy(bytes.fromhex(text)), 1)
"""


def test_what_is_opened_is_charged_to_its_maker_alone(tmp_path: Path, made: Cards) -> None:
    driver = tmp_path / "libcuda.so.1"
    (tmp_path / "ipc.c").write_text(_IPC)
    options = ["-O2", "-shared", "-fPIC", "-Wl,-Bsymbolic,-soname,libcuda.so.1"]
    subprocess.run(
        ["cc", *options, "-o", driver, shim.HERE / "null_driver.c", tmp_path / "ipc.c"],
        check=True,
    )
    (tmp_path / "other").mkdir()
    session, foreign = Outside(tmp_path, made), Outside(tmp_path / "other", made)
    for each in (session, foreign):
        each.environment |= shim.environment(each.folder, driver, abi.CardLimit(shim.UUID, 1, G))
    try:
        maker, same, other = session.server(_PROGRAM), session.server(_PROGRAM), foreign.server(_PROGRAM)

        def charged() -> list[dict[int, int]]:
            return [{row.pid: row.bytes for row in each.usage() if row.bytes} for each in (session, foreign)]

        handle = maker.run(f"give({G})")
        alone = [{maker.process.pid: G}, {}]
        assert charged() == alone
        assert same.run(f"take({handle!r})") == other.run(f"take({handle!r})") == 0
        assert charged() == alone
        assert same.run("lib.cuMemAlloc_v2(c.byref(c.c_uint64()), c.c_size_t(512))") == 2  # the session has no more
        assert same.run("lib.cuIpcCloseMemHandle(address)") == 0
        assert charged() == alone
        other.close()  # it ends without closing
        assert charged() == alone
        assert same.run(f"take({handle!r})") == 0
        maker.close()
        assert same.run("lib.cuIpcCloseMemHandle(address)") == 0
        # what is left of the maker is taken back when somebody needs it
        assert same.run(f"give({G})")
        assert charged() == [{same.process.pid: G}, {}]
    finally:
        session.close()
        foreign.close()


def test_simulated_cards_refuse_it_and_what_was_taken_stays_charged_once(
    out: Outside, made: Cards, uuids: list[str], context: int
) -> None:
    out.limit(abi.CardLimit(uuids[0], 1, 4 * G, context))
    one, other = out.server(CUDA), out.server(CUDA)
    error, pointer = one.run(f"allocate({G})")
    assert error == 0
    assert one.run(f"int(cu.cuIpcGetMemHandle({pointer})[0])") == NOT_SUPPORTED
    assert other.run("int(cu.cuIpcOpenMemHandle(cu.CUipcMemHandle(), 1)[0])") == NOT_SUPPORTED
    assert other.run("int(cu.cuIpcCloseMemHandle(1 << 21)[0])") == NOT_SUPPORTED
    assert {row.pid: row.bytes for row in out.usage()} == {one.process.pid: context + G, other.process.pid: context}
    assert made.used() == 2 * context + G
    assert one.run(f"release({pointer})") == 0
    assert [row.bytes for row in out.usage()] == [context, context]
