"""Runs one benchmark by name, or all, and then prints a table."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

from gpuspawner.errors import Unavailable

GOALS = {
    "api": ">= 1000",
    "cache-readers": "0",
    "cache-wait": "<= 0.35",
    "cache-warm": "<= 1.1",
    "checkpoint-kill": "0",
    "checkpoint-leak": "<= 5",
    "checkpoint-stall": "<= 50",
    "checkpoint-total": "<= 1.2",
    "cluster-grants": ">= 0.9",
    "cluster-resize": "<= 150 (p99)",
    "cluster-resize-ratio": ">= 20",
    "cluster-starts": "<= 1.1 (p99)",
    "compute-share": "<= 2",
    "ct": "<= 0.7",
    "decide": "<= 20 (p99)",
    "energy-error": "<= 1",
    "exactness": "0",
    "fast": ">= 1",
    "form": "<= 500",
    "image-start": "<= 3",
    "join": "",
    "kernel-latency": "<= 1.05 (p99)",
    "ledger-kill": "0",
    "ledger-report": "<= 1",
    "linear": "<= 3",
    "panel-lag": "<= 1500 (p95)",
    "panel-long-task": "<= 50",
    "panel-paint": "<= 1000",
    "park": "below dill",
    "quantum": "<= 1.05",
    "queue-replay": "<= 60",
    "queue-value": "shown",
    "resize": "<= 20 (p99)",
    "runtime-import": "<= 150",
    "scale-100": "<= 15",
    "scale-1000": "shown",
    "shim-alloc": "<= 200",
    "shim-alloc-100k": "<= 1.5",
    "shim-launch": "<= 20",
    "shim-meminfo": "<= 40",
    "spawn": "<= 100",
    "telemetry": "<= 1",
    "urgent": "<= 500 (p99)",
    "vehicles": ">= 20",
}


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; returns the exit status."""
    here = Path(__file__).parent
    modules = [m.name for m in pkgutil.iter_modules([str(here)]) if m.name.startswith("bench_")]
    known = {module.removeprefix("bench_").replace("_", "-"): module for module in modules}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"There is no benchmark {unknown[0]!r}. There are: {', '.join(sorted(known))}.", file=sys.stderr)
        return 2
    results = []
    for name in names or sorted(known):
        try:
            value, unit = importlib.import_module(f"tests.bench.{known[name]}").run()
        except Unavailable as error:
            print(f"{name}: not measured here. {error.message}", file=sys.stderr)
            if names:
                return 1
            continue
        results.append((name, value, unit))
        if not names:
            print()
    if not names:
        print(f"{'name':<16} {'value':>10} {'unit':<6} goal")
    for name, value, unit in results:
        if names:
            print(f"{name} {value:.2f} {unit}")
        else:
            print(f"{name:<16} {value:>10.2f} {unit:<6} {GOALS.get(name, '')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
