"""What reads something that others write (limit and usage file, launch plan, the simulated cards' socket), and rubbish.

The targets in `fuzz/` have libFuzzer's interface. Here they run with a small driver of our own, under the address and
undefined-behaviour sanitizers, a few seconds each; GPUSPAWNER_FUZZ_SECONDS makes it longer.
"""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest
from support.limits import ROOT
from support.sanitizers import compile_flags, needs

from gpuspawner.node.limits import abi

FUZZ = ROOT / "tests" / "c" / "fuzz"
SHIM = ROOT / "gpuspawner" / "node" / "limits" / "shim"
DAEMON = ROOT / "gpuspawner" / "simulation" / "src"
SECONDS = os.environ.get("GPUSPAWNER_FUZZ_SECONDS", "3")
CARDS = [f"GPU-00000000-0000-4000-8000-{i:012x}" for i in range(3)]

pytestmark = needs("address,undefined")


def sources(target: str) -> list[Path]:
    """What a target is compiled with."""
    if target == "limit_file":
        return [SHIM / "common.c"]
    if target == "usage_file":
        return [SHIM / "common.c", SHIM / "limitfile.c", SHIM / "accounts.c"]
    if target == "daemon":
        own = [path for path in (DAEMON / "daemon").glob("*.c") if path.name != "main.c"]
        return [*own, *(path for path in (DAEMON / "common").glob("*.c") if path.name != "client.c")]
    return []


def seeds(target: str, folder: Path) -> list[bytes]:
    """Inputs that are right, from which the others are made."""
    if target == "limit_file":
        path = folder / "seed"
        found = []
        for count in range(4):
            abi.write_limits(path, [abi.CardLimit(uuid, 1, 1 << 30, 1 << 20) for uuid in CARDS[:count]])
            found += [bytes([choice]) + path.read_bytes() for choice in range(4)]
        return found
    if target == "usage_file":
        call = struct.Struct("=BBHQ")
        return [
            b"".join(call.pack(kind, 1, place, value) for kind in range(6) for place in (0, 33, 70))
            for value in (0, 1, 4096, os.getpid() | 5 << 23, 1 << 62, (1 << 64) - 1)
        ]
    if target == "plan":
        return [
            b"alive\0/a\0home\0/h\0uid\0001000\0gid\0001000\0mode\0namespaces\0",
            b"alive\0/a\0home\0/h\0mode\0advisory\0cover\0/c\0scratch\0/s\0rebuild\0/r\0seal\0/e\0proc\0/p\0",
            b"alive\0/a\0home\0/h\0bind\0/f\0/t\0bind?\0/f\0/t\0bindro\0/f\0/t\0bindro?\0/f\0/t\0link\0/f\0/t\0",
        ]
    header = struct.Struct("=4I2Q")
    protocol = (DAEMON / "common" / "protocol.h").read_text()
    version = int(protocol.split("#define SIM_VERSION ")[1].split()[0].rstrip("u"))

    def messages(*all_: bytes) -> bytes:
        return b"".join(bytes([len(one)]) + one for one in all_)

    hello = header.pack(0, 1, 0, 0, 0, version)
    asks = [header.pack(0, op, card, 0, 1 << 21, 0) for op in range(2, 14) for card in (0, 2)]
    lines = (
        "state\nset 0 temperature 91\nset 1 power auto\nlink 0 1 up 0\nunsupported 0 ecc\nsupported 0 ecc\nxid 0 79\n"
        "lose 1\nrestore 1\nkernel-wave-ns 5\nslice-ns 7\nquit-when-unused\nset 0 fan\nlink 0\nnonsense"
    ).splitlines()
    control = header.pack(0, 8, 0, 0, 0, 0)
    return [
        messages(hello, *asks),
        *(messages(hello, ask, ask, control + line.encode()) for line in lines for ask in asks[:3]),
    ]


@pytest.mark.parametrize("target", ["limit_file", "usage_file", "plan", "daemon"])
def test_rubbish_neither_crashes_nor_confuses(target: str, tmp_path: Path) -> None:
    flags = [*compile_flags("address,undefined"), "-DHOST_FLAVOUR", "-DWAIT_NS=20000", "-I", str(SHIM)]
    flags += ["-I", str(DAEMON / "daemon")]
    program = tmp_path / target
    subprocess.run(["cc", *flags, "-c", "-o", tmp_path / "driver.o", FUZZ / "driver.c"], check=True)
    parts = [FUZZ / f"{target}.c", *sources(target), tmp_path / "driver.o"]
    subprocess.run(["cc", *flags, "-fsanitize-coverage=trace-pc", "-o", program, *parts, "-pthread"], check=True)
    files = []
    for number, seed in enumerate(seeds(target, tmp_path)):
        files.append(tmp_path / f"seed-{number}")
        files[-1].write_bytes(seed)
    abi.write_limits(tmp_path / "limits", [abi.CardLimit(uuid, 1, 1 << 30) for uuid in CARDS])
    abi.create_usage(tmp_path / "usage")
    done = subprocess.run(
        [program, SECONDS, tmp_path / "input", *files],
        env={
            "GPUSPAWNER_LIMITS": str(tmp_path / "limits"),
            "GPUSPAWNER_USAGE": str(tmp_path / "usage"),
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
        capture_output=True,
        text=True,
        timeout=float(SECONDS) + 100,
        check=False,
    )
    content = (tmp_path / "input").read_bytes()
    last = content[8 : 8 + int.from_bytes(content[:8], "little")]
    assert done.returncode == 0, f"{done.stderr[-3000:]}\nby the input {last.hex()}"
    calls, kept = (int(word) for word in done.stdout.split() if word.isdigit())
    assert kept > len(files)  # it found more than it was given
    assert calls > 300
