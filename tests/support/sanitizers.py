"""Building C parts with the compiler's sanitizers, where the compiler has them."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile

import pytest


def compile_flags(kinds: str) -> list[str]:
    """For the sanitizers named, e.g. "address,undefined": the first fault ends the program."""
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer", f"-fsanitize={kinds}"]
    flags += ["-D_GNU_SOURCE=", "-fno-strict-aliasing"]
    return [*flags, "-Wno-tsan"] if "thread" in kinds else [*flags, "-fno-sanitize-recover=all"]


@functools.cache
def fuzzer() -> str | None:
    """The compiler that has libFuzzer, if this machine has one."""
    clang = shutil.which("clang")
    return clang if clang and _works("address,undefined") and _makes(clang, "fuzzer,address") else None


def _makes(compiler: str, kinds: str) -> bool:
    target = "int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d == 0 && n; }"
    with tempfile.TemporaryDirectory() as folder:
        command = [compiler, f"-fsanitize={kinds}", "-x", "c", "-", "-o", f"{folder}/a"]
        made = subprocess.run(command, input=target, text=True, capture_output=True, check=False)
    return made.returncode == 0


@functools.cache
def _works(kinds: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(
            ["cc", *compile_flags(kinds), "-x", "c", "-", "-o", f"{folder}/a"],
            input="int main(void) { return 0; }",
            text=True,
            capture_output=True,
            check=False,
        )
        return (
            made.returncode == 0 and subprocess.run([f"{folder}/a"], capture_output=True, check=False).returncode == 0
        )


def needs(kinds: str) -> pytest.MarkDecorator:
    """Skips where programs with these sanitizers cannot be compiled or do not run."""
    return pytest.mark.skipif(not _works(kinds), reason=f"this machine's compiler has no -fsanitize={kinds}")
