"""Runs one benchmark by name, or all, and then prints a table."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

GOALS = {"resize": "<= 20 (p99)", "spawn": "<= 100"}


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; returns the exit status."""
    here = Path(__file__).parent
    known = {m.name.removeprefix("bench_"): m.name for m in pkgutil.iter_modules([str(here)]) if m.name[:6] == "bench_"}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"There is no benchmark {unknown[0]!r}. There are: {', '.join(sorted(known))}.", file=sys.stderr)
        return 2
    results = []
    for name in names or sorted(known):
        value, unit = importlib.import_module(f"tests.bench.{known[name]}").run()
        results.append((name, value, unit))
        if not names:
            print()
    if not names:
        print(f"{'name':<12} {'value':>10} {'unit':<6} goal")
    for name, value, unit in results:
        if names:
            print(f"{name} {value:.2f} {unit}")
        else:
            print(f"{name:<12} {value:>10.2f} {unit:<6} {GOALS.get(name, '')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
