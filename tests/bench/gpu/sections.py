"""One section of shim.sh: `sections.py NAME OUTPUT_FOLDER` prints one line of JSON.

It starts programs of its own (`programs.py`) with the shim before the driver, or without it for a baseline.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuspawner.node.limits import abi

PROGRAMS = Path(__file__).with_name("programs.py")
OUT = Path(sys.argv[2])
CARD = json.loads((OUT / "card.json").read_text())
MEMORY = int(CARD["memory_bytes"])
Figures = dict[str, Any]


class Skip(Exception):
    """The machine lacks what a section needs."""


def limit(eighths: int) -> int:
    """Put a share in force; its memory in bytes."""
    allowed = MEMORY * eighths // 8
    abi.write_limits(OUT / "limit", [abi.CardLimit(CARD["uuid"], eighths, allowed)])
    return allowed


def environment(shim: bool, limits: Path | None = None, usage: Path | None = None, **more: str) -> dict[str, str]:
    """What a program runs in."""
    env = dict(os.environ) | more
    if shim:
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(OUT / "lib"), env.get("LD_LIBRARY_PATH"))))
        env["GPUSPAWNER_LIMITS"] = str(limits or OUT / "limit")
        env["GPUSPAWNER_USAGE"] = str(usage or OUT / "usage")
    return env


def start(name: str, *arguments: object, env: dict[str, str]) -> subprocess.Popen[str]:
    """A program, spoken to line by line."""
    argv = [sys.executable, str(PROGRAMS), name, *map(str, arguments)]
    return subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(program: subprocess.Popen[str]) -> Any:
    """Its next line of JSON. Raises Skip where it says that something is missing."""
    assert program.stdout is not None
    for line in program.stdout:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and "missing" in said:
            raise Skip(said["missing"])
        return said
    raise RuntimeError(f"the program ended with {program.wait()}")


def tell(program: subprocess.Popen[str], word: str) -> Any:
    """Send a line; the answer."""
    assert program.stdin is not None
    program.stdin.write(f"{word}\n")
    program.stdin.flush()
    return answer(program)


def run(name: str, *arguments: object, shim: bool = True, **more: str) -> Any:
    """A program's one answer."""
    program = start(name, *arguments, env=environment(shim, **more))
    try:
        return answer(program)
    finally:
        program.kill()
        program.wait()


def card() -> Figures:
    limit(8)
    return {"memory_gib": round(MEMORY / 2**30, 2), **run("driver")}


def cap() -> Figures:
    allowed = limit(2)
    got = run("fill")
    over = got["bytes"] - allowed
    return {"allowed_bytes": allowed, "allocated_bytes": got["bytes"], "over_bytes": max(0, over), "code": got["code"]}


def resize(kind: str = "driver") -> Figures:
    """One process through 1/4, 1/2, 1/4: what it can hold at each, and that the shrink is seen after it freed."""
    small = limit(2)
    program = start("steps", kind, env=environment(True))
    try:
        first = tell(program, "fill")
        limit(4)
        second = tell(program, "fill")
        limit(2)
        after = tell(program, "info")
        freed = tell(program, "empty")
        third = tell(program, "fill")
    finally:
        program.kill()
    return {
        "at_1/4": first["bytes"],
        "at_1/2": second["bytes"],
        "free_after_shrink": after["free"],
        "used_after_empty": freed["used"],
        "again_at_1/4": third["bytes"],
        "held": first["bytes"] <= small and third["bytes"] <= small and after["free"] == 0,
    }


def torch_section(name: str, **more: str) -> Callable[[], Figures]:
    def section() -> Figures:
        allowed = limit(2)
        got: Figures = run("torch", name, allowed, **more)
        return got

    return section


def two() -> Figures:
    """Two sessions at 1/4 and 1/2 that both want all of the card's time: what part each gets of both."""
    programs = []
    for eighths in (2, 4):
        limits, usage = OUT / f"limit-{eighths}", OUT / f"usage-{eighths}"
        abi.write_limits(limits, [abi.CardLimit(CARD["uuid"], eighths, MEMORY * eighths // 8)])
        abi.create_usage(usage)
        programs.append(start("busy", 15, env=environment(True, limits, usage)))
    try:
        work = [answer(program)["units_per_second"] for program in programs]
    finally:
        for program in programs:
            program.kill()
    alone = run("busy", 5, shim=False)["units_per_second"]
    return {"quarter_percent": round(100 * work[0] / alone, 1), "half_percent": round(100 * work[1] / alone, 1)}


def overhead(name: str) -> Callable[[], Figures]:
    """Milliseconds with the shim at the whole card against without it, in turns, so that drift meets both."""

    def section() -> Figures:
        limit(8)
        times: dict[bool, list[float]] = {True: [], False: []}
        for shim in (False, True, True, False):
            times[shim].append(run(name, shim=shim)["ms"])
        plain, shimmed = statistics.mean(times[False]), statistics.mean(times[True])
        return {
            "plain_ms": round(plain, 3),
            "shim_ms": round(shimmed, 3),
            "percent": round(100 * (shimmed / plain - 1), 2),
            "spread_percent": round(100 * abs(times[False][0] / times[False][1] - 1), 2),
        }

    return section


def escapes() -> Figures:
    """Ways past the shim that need no namespace to stand in: what each could allocate over a limit of an eighth."""
    allowed = limit(1)
    found = {}
    clean = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    for name, env, arguments in (
        ("no_variables", os.environ | clean, ()),
        ("drivers_own_path", environment(True), (CARD["driver"],)),
    ):
        program = start("fill", *arguments, env=dict(env))
        try:
            got = answer(program)
        finally:
            program.kill()
        found[name] = "past the limit" if got["bytes"] > allowed else "held"
    return found


SECTIONS: dict[str, Callable[[], Figures]] = {
    "card": card,
    "cap": cap,
    "resize": resize,
    "resize-torch": lambda: resize("torch"),
    "caching": torch_section("caching"),
    "expandable": torch_section("caching", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
    "async": torch_section("caching", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"),
    "graphs": torch_section("graphs"),
    "compile": torch_section("compile"),
    "two": two,
    "overhead-train": overhead("train"),
    "overhead-small": overhead("small"),
    "overhead-egl": overhead("egl"),
    "escapes": escapes,
}


def main() -> None:
    name = sys.argv[1]
    try:
        line: dict[str, Any] = {"section": name, "status": "ok", "figures": SECTIONS[name]()}
    except Skip as missing:
        line = {"section": name, "status": "skipped", "reason": str(missing)}
    print(json.dumps(line))


main()
