"""A program that uses the CUDA driver through ctypes: runs in a process of its own and does what it is told.

Each line on stdin is one JSON string, Python code; each line on stdout the JSON answer. The names below are the
code's vocabulary: `cu.Name(...)` calls `cuName` and raises `CudaError` unless it succeeds.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

MIB = 1 << 20
GIB = 1 << 30


class CudaError(RuntimeError):
    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name}: {code}")
        self.code = code


class Driver:
    """`cu.MemAlloc_v2(...)`; whole numbers are passed as 64 bits, so that addresses survive."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, f"cu{name}")

        def call(*arguments: Any) -> None:
            passed = [c_uint64(a & (2**64 - 1)) if isinstance(a, int) else a for a in arguments]
            code = function(*passed)
            if code:
                raise CudaError(f"cu{name}", code)

        return call


cu = Driver()


def code_of(name: str, *arguments: Any) -> int:
    """The result code of a call that is expected to fail."""
    try:
        getattr(cu, name)(*arguments)
    except CudaError as error:
        return error.code
    return 0


def start(device: int = 0) -> c_void_p:
    """cuInit and the device's primary context, made current."""
    context = c_void_p()
    cu.Init(0)
    cu.DevicePrimaryCtxRetain(byref(context), device)
    cu.CtxSetCurrent(context)
    return context


def out(call: str, kind: Any, *arguments: Any) -> Any:
    """What a call writes through its first argument."""
    value = kind()
    getattr(cu, call)(byref(value), *arguments)
    return value.value


def alloc(size: int) -> int:
    return int(out("MemAlloc_v2", c_uint64, size))


def info() -> tuple[int, int]:
    free, total = c_size_t(), c_size_t()
    cu.MemGetInfo_v2(byref(free), byref(total))
    return free.value, total.value


def used() -> int:
    free, total = info()
    return total - free


def put(address: int, data: bytes) -> None:
    cu.MemcpyHtoD_v2(address, data, len(data))


def get(address: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    cu.MemcpyDtoH_v2(buffer, address, size)
    return buffer.raw


def resident_bytes() -> int:
    """Memory of this process that is committed."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve() -> None:
    names: dict[str, Any] = {**globals(), "c_char_p": c_char_p, "c_int": c_int, "c_uint": c_uint}
    for line in sys.stdin:
        code = json.loads(line)
        try:
            try:
                value = eval(compile(code, "<told>", "eval"), names)
            except SyntaxError:
                exec(compile(code, "<told>", "exec"), names)
                value = None
            answer = {"value": value.hex() if isinstance(value, bytes) else value}
        except CudaError as error:
            answer = {"code": error.code, "error": str(error)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
