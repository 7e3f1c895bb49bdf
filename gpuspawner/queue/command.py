"""`gpuspawner queue`: what other rules would have made of a trace."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuspawner.errors import InvalidInput
from gpuspawner.queue.rules import CLASSES, POLICIES

if TYPE_CHECKING:
    from gpuspawner.queue.replay import Result


ACTS = ("replay", "synthetic")


def add(commands: Any) -> Any:
    """Add `queue` to the parser's commands. Returns where more of its acts are added."""
    queue = commands.add_parser("queue", help="who waits; compare rules of the queue on a trace, in virtual time")
    acts = queue.add_subparsers(dest="act")
    play = acts.add_parser("replay", help="run a trace by each policy and compare")
    play.add_argument("trace", type=Path, help="a file of JSON lines, as `queue synthetic` writes them")
    play.add_argument(
        "--policy", action="append", choices=sorted(POLICIES), help="only this one; may be given several times"
    )
    play.add_argument("--json", action="store_true", help="as JSON, for programs")
    play.add_argument("--plot", type=Path, help="write a picture too: a name that ends in .svg, .png or .pdf")
    made = acts.add_parser("synthetic", help="write a trace made up by chance")
    made.add_argument("--jobs", type=int, default=1000, help="how many people come (1 to 1,000,000)")
    made.add_argument("--cards", type=int, default=16, help="how many cards there are (1 to 1,024)")
    made.add_argument("--seed", type=int, default=1, help="the same seed gives the same trace")
    return acts


def run(given: argparse.Namespace) -> int:
    """Run what was asked for; returns the exit status. Raises InvalidInput."""
    # the other commands do not wait for pydantic
    from gpuspawner.queue import plot
    from gpuspawner.queue.replay import replay
    from gpuspawner.queue.trace import read, synthetic

    if given.act == "synthetic":
        for field, most in (("jobs", 10**6), ("cards", 1024)):
            value = getattr(given, field)
            if not 1 <= value <= most:
                raise InvalidInput(f"{field}: {value} is not allowed. Allowed: 1 to {most}.", field=field, given=value)
        for line in synthetic(given.jobs, given.cards, seed=given.seed).lines():
            print(line)
        return 0
    if given.plot is not None:
        plot.check(given.plot)
    trace = read(given.trace)
    # how often the told wait was right is found out on about 500 of them
    ask_every = max(1, len(trace.jobs) // 500)
    names = given.policy or list(POLICIES)
    results = []
    for name in dict.fromkeys(names):
        if not given.json:
            print(f"{name} ...", end="\r", file=sys.stderr, flush=True)
        results.append(replay(trace, POLICIES[name], ask_every=ask_every, whole=given.plot is not None))
    if given.plot is not None:
        plot.draw(
            results, sum(each.count for each in trace.cards), trace.jobs[-1].at if trace.jobs else 0.0, given.plot
        )
    if given.json:
        print(json.dumps([as_json(result) for result in results], indent=2))
    else:
        print(table(results))
    return 0


def as_json(result: Result) -> dict[str, Any]:
    """The result for programs; times in seconds."""
    found = dataclasses.asdict(result)
    for name in ("expected", "told", "waited", "held"):
        found.pop(name)
    found["expected_waits"] = {"asked": len(result.expected), **(calibration(result) or {}), **ranges(result)}
    return found


def ranges(result: Result) -> dict[str, float | int | None]:
    """Of the ranges that people were told: how many were told one, which part (0 to 1) of them waited as long as that,
    and which part no longer; None where nobody was told one."""
    told = [(said, did) for said, did in result.told if said is not None]
    parts = (sum(said.holds(did) for said, did in told), sum(did <= said.high for said, did in told))
    right, enough = (each / len(told) if told else None for each in parts)
    return {"ranges_told": len(told), "range_right": right, "range_enough": enough}


def calibration(result: Result) -> dict[str, float] | None:
    """Of those who were told how long they would wait: the parts (0 to 1) who waited no longer than that and a minute,
    and no longer than twice that and a minute. None where nobody could be told."""
    told = [(said, did) for said, did in result.expected if said is not None]
    if not told:
        return None
    return {
        "in_time": sum(did <= said + 60 for said, did in told) / len(told),
        "within_twice": sum(did <= 2 * said + 60 for said, did in told) / len(told),
    }


def table(results: list[Result]) -> str:
    """The results side by side: waits as median / 99th percentile."""
    rows = [["", *(result.policy for result in results)]]
    rows.append(["utilisation", *(f"{result.utilisation:.1%}" for result in results)])
    for kind in CLASSES:
        rows.append([f"wait, {kind}", *(_wait(result, kind) for result in results)])
    rows.append(["deadlines missed", *(f"{result.missed} of {result.deadlines}" for result in results)])
    rows.append(["made smaller", *(str(result.shrinks) for result in results)])
    rows.append(["parked", *(str(result.parks) for result in results)])
    rows.append(["lost to returning", *(duration(result.returns) for result in results)])
    rows.append(["all done after", *(duration(result.seconds) for result in results)])
    right = [calibration(result) for result in results]
    rows.append(["told wait was enough", *("-" if each is None else f"{each['in_time']:.0%}" for each in right)])
    told = [ranges(result) for result in results]
    rows.append(["told range was right", *(_part(each["range_right"]) for each in told)])
    rows.append(["range not known", *(f"{_unknown(result)}" for result in results)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _part(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def _unknown(result: Result) -> str:
    return f"{len(result.told) - int(ranges(result)['ranges_told'] or 0)} of {len(result.told)}"


def _wait(result: Result, kind: str) -> str:
    waits = result.waits[kind]
    return "-" if waits.median is None or waits.p99 is None else f"{duration(waits.median)} / {duration(waits.p99)}"


def duration(seconds: float) -> str:
    """Seconds for people: "0 s", "12 min", "3.4 h", "2.1 d"."""
    for unit, size in (("d", 86400.0), ("h", 3600.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
