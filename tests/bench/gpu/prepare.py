"""Lays out the shim for programs without a namespace: its libraries, a limit file and a usage file."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import uuid
from pathlib import Path

from gpuspawner.node.limits import abi, build


def find(soname: str) -> Path:
    """The library that the linker loads."""
    library = ctypes.CDLL(soname)
    del library
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/" in line and Path(line[line.index("/") :]).name.startswith(soname.removesuffix(".1")):
            return Path(line[line.index("/") :]).resolve()
    raise OSError(f"{soname} was not found")


def card() -> tuple[str, str, int]:
    """uuid, name and memory of the first card, from the driver."""
    cuda = ctypes.CDLL("libcuda.so.1")
    raw, name, memory = (ctypes.c_uint8 * 16)(), ctypes.create_string_buffer(128), ctypes.c_size_t()
    for code in (
        cuda.cuInit(0),
        cuda.cuDeviceGetUuid_v2(raw, 0),
        cuda.cuDeviceGetName(name, 128, 0),
        cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), 0),
    ):
        if code:
            raise OSError(f"the driver answers {code}")
    return f"GPU-{uuid.UUID(bytes=bytes(raw))}", name.value.decode(), memory.value


def main(out: Path) -> None:
    driver = build.DriverFiles(cuda=find("libcuda.so.1"), nvml=find("libnvidia-ml.so.1"))
    build.host_flavour(driver, out / "lib")
    uuid_, name, memory = card()
    abi.write_limits(out / "limit", [abi.CardLimit(uuid_, 8, memory)])
    abi.create_usage(out / "usage")
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=False).stdout.splitlines()
    facts = {"card": name, "uuid": uuid_, "memory_bytes": memory, "driver": str(driver.cuda), "compiler": compiler[:1]}
    (out / "card.json").write_text(json.dumps(facts))


main(Path(sys.argv[1]))
