"""Every entry point of the vendor's headers that could take card memory is the shim's, or passes for a reason."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from support.limits import ROOT, Cards, outside
from support.limits import cards as made_cards

from gpuspawner.node.limits import abi, build

SHIM = ROOT / "gpuspawner" / "node" / "limits" / "shim"
HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")


@cache
def headers() -> dict[str, str]:
    """The driver's headers without comments, from the wheel that has them."""
    found = {}
    for file in metadata.files("nvidia-cuda-runtime") or []:
        if file.name in HEADERS:
            text = Path(str(file.locate())).read_text()
            found[file.name] = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    assert set(found) == set(HEADERS), "the wheel nvidia-cuda-runtime has not all of the driver's headers"
    return found


def declared(text: str) -> set[str]:
    """All symbols of a header: as declared, as renamed by macros, and the forms for the per-thread default stream."""
    names = set(re.findall(r"\bCUresult\s+CUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
    for name, form, target in re.findall(
        r"#\s*define\s+(cu[A-Z]\w*)\s+(?:__CUDA_API_(PT[SD][ZS])\()?(cu[A-Z]\w*)", text
    ):
        names |= {name, target} | ({f"{target}_{form.lower()}"} if form else set())
    return names


def base(symbol: str) -> str:
    """The name by which cuGetProcAddress knows it."""
    return re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", symbol)


def rows(macro: str) -> list[tuple[str, ...]]:
    text = (SHIM / "passed.h").read_text()
    return [
        tuple(part.strip(' "') for part in row.split(",", 1)) for row in re.findall(rf"^{macro}\((.*)\)$", text, re.M)
    ]


@cache
def intercepted() -> set[str]:
    """What the built library exports."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", build.BIN / "libgpuspawner-cuda.so"], capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in listed.stdout.splitlines()}


def unseen(symbols: set[str]) -> set[str]:
    words = [word for (word,) in rows("WORD")]
    passed = {name for name, _ in rows("PASSED")}
    suspects = {symbol for symbol in symbols if any(word in symbol for word in words)}
    return {symbol for symbol in suspects - intercepted() if base(symbol) not in passed}


def everything() -> set[str]:
    symbols = set().union(*map(declared, headers().values()))
    entries = (ROOT / "gpuspawner" / "simulation" / "src" / "cuda" / "entries.inc").read_text()
    return symbols | set(re.findall(r"^ENTRY\(\w+, \d+, \d, (\w+)\)", entries, re.M))


def test_no_entry_point_that_could_take_memory_is_unseen() -> None:
    symbols = everything()
    assert len(symbols) > 700
    assert {"cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocAsync_ptsz", "cuGraphLaunch_ptsz", "cuGLCtxCreate_v2"} <= symbols
    assert unseen(symbols) == set()


def test_a_new_allocator_in_the_header_is_found() -> None:
    text = headers()["cuda.h"] + "\nCUresult CUDAAPI cuMemAllocElsewhere(CUdeviceptr *dptr);\n"
    text += "#define cuMemCreate __CUDA_API_PTSZ(cuMemCreate_v9)\n"
    assert unseen(declared(text)) == {"cuMemAllocElsewhere", "cuMemCreate_v9", "cuMemCreate_v9_ptsz"}


def test_the_table_says_nothing_that_is_not_so() -> None:
    passed, reasons = [name for name, _ in rows("PASSED")], dict(rows("REASON"))
    known = {base(symbol) for symbol in everything()}
    assert passed == sorted(set(passed))  # it is searched by halves
    assert set(passed) <= known
    assert not set(passed) & {base(symbol) for symbol in intercepted()}
    assert {reason for _, reason in rows("PASSED")} == set(reasons)
    assert all(len(text) > 20 for text in reasons.values())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cards]:
    with made_cards(tmp_path_factory.mktemp("cards"), "1*v100-16gb") as found:
        yield found


NEWER_DRIVER = """
#include <stdint.h>
#include <string.h>
int cuTakesMemory(void);
int cuTakesMemory(void) { return 0; }
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)version, (void)flags, (void)status;
    return *function = (void *)cuTakesMemory, 0;
}
"""


def host_shim(folder: Path, source: str, made: Cards) -> Path:
    """The folder of a shim in front of a driver made from C `source`."""
    driver = folder / "libcuda.so.1"
    (folder / "driver.c").write_text(source)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "-o", driver, folder / "driver.c"],
        check=True,
    )
    return build.host_flavour(build.DriverFiles(driver, made.driver().nvml), folder / "host")


def test_an_unknown_allocator_is_said_once_and_works(tmp_path: Path, made: Cards) -> None:
    source = (
        "import ctypes\n"
        "lib = ctypes.CDLL('libcuda.so.1')\n"
        "for name in (b'cuStreamQuery', b'cuMemHostAlloc', b'cuMemAllocNew', b'cuMemAllocNew', b'cuVectorCreate'):\n"
        "    found = ctypes.c_void_p()\n"
        "    assert lib.cuGetProcAddress_v2(name, ctypes.byref(found), 14000, ctypes.c_uint64(0), None) == 0\n"
        "    assert ctypes.CFUNCTYPE(ctypes.c_int)(found.value)() == 0\n"
    )
    with outside(tmp_path / "out", made) as out:
        out.limit(abi.CardLimit(made.uuids()[0], 1, 1 << 30))
        host = host_shim(tmp_path, NEWER_DRIVER, made)
        done = subprocess.run(
            [sys.executable, "-c", source],
            env=out.environment | {"LD_LIBRARY_PATH": str(host)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stderr == (
        "gpuspawner: cuMemAllocNew is newer than this library: memory that it takes is not counted here\n"
    )


def test_the_pointer_that_the_driver_returns_decides_between_forms(made: Cards, tmp_path: Path) -> None:
    """From CUDA 12 on, `cuGraphInstantiate` has another parameter list than the symbol of that name."""
    source = NEWER_DRIVER.replace("cuTakesMemory", "cuGraphInstantiateWithFlags")
    source += "int cuGraphInstantiate_v2(void);\nint cuGraphInstantiate_v2(void) { return 5; }\n"
    host = host_shim(tmp_path, source, made)
    lib = ctypes.CDLL(str(host / "libcuda.so.1"))
    found = ctypes.c_void_p()
    assert lib.cuGetProcAddress_v2(b"cuGraphInstantiate", ctypes.byref(found), 12000, ctypes.c_uint64(0), None) == 0
    assert found.value == ctypes.cast(lib.cuGraphInstantiateWithFlags, ctypes.c_void_p).value
