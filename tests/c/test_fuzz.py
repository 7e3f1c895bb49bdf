"""What reads something that others write (limit and usage file, launch plan, the simulated cards' socket), and rubbish.

Under the address and undefined-behaviour sanitizers, a few seconds each; GPUSPAWNER_FUZZ_SECONDS makes it longer. By
libFuzzer where the machine's clang has it, else by a small driver of our own with the same interface.
"""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest
from support.limits import ROOT
from support.sanitizers import compile_flags, fuzzer, needs

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
            b"alive\0/a\0home\0/h\0" + b"group\0007\0" * 17,
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


def environment(folder: Path) -> dict[str, str]:
    """What the targets read of files, made ready in `folder`."""
    abi.write_limits(folder / "limits", [abi.CardLimit(uuid, 1, 1 << 30) for uuid in CARDS])
    abi.create_usage(folder / "usage")
    return {
        "GPUSPAWNER_LIMITS": str(folder / "limits"),
        "GPUSPAWNER_USAGE": str(folder / "usage"),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def run(command: list[str | Path], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The target, for SECONDS and the time that it takes to come to an end."""
    limit = float(SECONDS) + 100
    return subprocess.run(
        command, env=env, capture_output=True, text=True, errors="replace", timeout=limit, check=False
    )


@pytest.mark.parametrize("target", ["limit_file", "usage_file", "plan", "daemon"])
def test_rubbish_neither_crashes_nor_confuses(target: str, tmp_path: Path) -> None:
    flags = [*compile_flags("address,undefined"), "-DHOST_FLAVOUR", "-DWAIT_NS=20000", "-I", str(SHIM)]
    flags += ["-I", str(DAEMON / "daemon")]
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds(target, tmp_path)):
        (corpus / f"seed-{number}").write_bytes(seed)
    given = len(list(corpus.iterdir()))
    program, parts = tmp_path / target, [FUZZ / f"{target}.c", *sources(target)]
    found = _by_libfuzzer if fuzzer() else _by_our_own
    calls, kept = found(program, parts, flags, corpus, environment(tmp_path))
    assert kept > given  # it found more than it was given
    assert calls > 300


def _by_libfuzzer(
    program: Path, parts: list[Path], flags: list[str], corpus: Path, env: dict[str, str]
) -> tuple[int, int]:
    compiler = fuzzer()
    assert compiler
    subprocess.run([compiler, *flags, "-fsanitize=fuzzer", "-o", program, *parts, "-pthread"], check=True)
    found = corpus.with_name("found")
    found.mkdir()
    options = [f"-max_total_time={SECONDS}", "-seed=1", "-max_len=8192", "-timeout=60", "-print_final_stats=1"]
    done = run([program, *options, f"-artifact_prefix={corpus.parent}/", found, corpus], env)
    inputs = {path.name: path.read_bytes().hex()[:4000] for path in corpus.parent.glob("*-*") if path.is_file()}
    assert done.returncode == 0, f"{done.stderr[-3000:]}\nby the input {inputs}"
    calls = int(done.stderr.split("stat::number_of_executed_units:")[1].split()[0])
    return calls, len(list(corpus.iterdir())) + len(list(found.iterdir()))


def _by_our_own(
    program: Path, parts: list[Path], flags: list[str], corpus: Path, env: dict[str, str]
) -> tuple[int, int]:
    driver, last = program.with_name("driver.o"), program.with_name("input")
    subprocess.run(["cc", *flags, "-c", "-o", driver, FUZZ / "driver.c"], check=True)
    subprocess.run(
        ["cc", *flags, "-fsanitize-coverage=trace-pc", "-o", program, *parts, driver, "-pthread"], check=True
    )
    done = run([program, SECONDS, last, *corpus.iterdir()], env)
    content = last.read_bytes()
    said = content[8 : 8 + int.from_bytes(content[:8], "little")].hex()
    assert done.returncode == 0, f"{done.stderr[-3000:]}\nby the input {said}"
    calls, kept = (int(word) for word in done.stdout.split() if word.isdigit())
    return calls, kept
