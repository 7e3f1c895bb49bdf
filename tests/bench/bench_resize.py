"""From a request at the service to the new limit in force inside the running process, on simulated cards.

The process asks the driver for its memory (cuMemGetInfo) without pause and notes the monotonic clock, which all
processes of a machine share, at the first answer with the new limit.

Two baselines are taken in turns with it, since processors and disk may be busy with other things: the same request
with the share that is in force already, which takes the same way through the service and changes nothing, and a
transaction of SQLite as the node writes one before it raises a limit.
"""

from __future__ import annotations

import http.client
import json
import os
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from tests.support.machine import SERVICE_TOKEN, Machine, machine

ROUNDS = 1000
#: What the driver of an 80 GB H100 reports, simulated or not.
CARD = 85_520_809_984

_WAIT = """
import time
def wait_for(total):
    for _ in range(100_000_000):
        if info()[1] == total:
            return time.monotonic_ns()
    raise AssertionError(f"never {total}")
"""


class _Asker:
    """Sends the requests: little more than the bytes, so that little of what is measured is the client's."""

    def __init__(self, node: Machine, session: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", node.port + 3, timeout=60)
        self._path = f"{node.api.base_url.path}sessions/{session}"
        self._headers = {"Authorization": f"Bearer {SERVICE_TOKEN}", "Content-Type": "application/json"}

    def resize(self, share: str) -> None:
        self._connection.request("PATCH", self._path, json.dumps({"share": share}), self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body


def _commits(folder: Path) -> sqlite3.Connection:
    database = sqlite3.connect(folder / "baseline.sqlite")
    database.executescript(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; "
        "CREATE TABLE records (name TEXT PRIMARY KEY, value); INSERT INTO records VALUES ('a', 0);"
    )
    return database


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _percentile(taken: list[float], percent: int) -> float:
    return sorted(taken)[len(taken) * percent // 100 - 1]


def _line(what: str, taken: list[float]) -> str:
    median, p99 = statistics.median(taken), _percentile(taken, 99)
    return f"{what}: median {median:.2f} ms, p99 {p99:.2f} ms, longest {max(taken):.2f} ms"


def run() -> tuple[float, str]:
    """The 99th percentile over ROUNDS resizes, in milliseconds."""
    taken: list[float] = []
    answered: list[float] = []
    unchanged: list[float] = []
    written: list[float] = []
    spent = 0.0
    with tempfile.TemporaryDirectory() as folder, machine(Path(folder) / "state", "1*h100-80gb") as node:
        session, program = node.start("ann", "1/8")
        program(_WAIT)
        asker, database = _Asker(node, session["id"]), _commits(Path(folder))
        assert node.service is not None
        for round_ in range(ROUNDS):
            share, total = (("1/4", CARD // 4), ("1/8", CARD // 8))[round_ % 2]
            program.send(f"wait_for({total})")
            spent -= _cpu_seconds(node.service.pid)
            asked = time.monotonic_ns()
            asker.resize(share)
            answered.append((time.monotonic_ns() - asked) / 1e6)
            spent += _cpu_seconds(node.service.pid)
            taken.append((program.receive() - asked) / 1e6)

            asked = time.monotonic_ns()
            asker.resize(share)
            unchanged.append((time.monotonic_ns() - asked) / 1e6)
            asked = time.monotonic_ns()
            with database:
                database.execute("UPDATE records SET value = ?", (round_,))
            written.append((time.monotonic_ns() - asked) / 1e6)
        database.close()
    each = 1000 * spent / ROUNDS
    print(f"resize on simulated cards, {ROUNDS} rounds, {each:.1f} ms of the service's processor time for each")
    print(_line("limit in force", taken))
    print(_line("  grow, written down before", taken[::2]))
    print(_line("  shrink, written down after", taken[1::2]))
    print(_line("answered, with its row in the ledger", answered))
    print(_line("the same request where nothing changes, answered", unchanged))
    print(_line("a transaction on the same disk", written))
    return _percentile(taken, 99), "ms"
