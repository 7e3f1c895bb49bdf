"""By how many units the ledger is off after 200 kill -9 of a service under load, on SQLite and on PostgreSQL.

Units: millionths of money and eighth-seconds, over every session, every day, the whole, and cuts at random, against
what the fleet says was held (tests/support/month.py)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from gpuspawner.errors import Unavailable
from tests.support.postgres import installed, postgres

KILLS = 200
_ROOT = Path(__file__).parents[2]


def run() -> tuple[float, str]:
    """Both databases together."""
    if not installed():
        raise Unavailable("PostgreSQL is not installed: sudo apt install postgresql")
    off = 0
    with tempfile.TemporaryDirectory() as folder, postgres() as cluster:
        for name, url in (("SQLite", f"sqlite:///{folder}/service.sqlite"), ("PostgreSQL", cluster.database())):
            (place := Path(folder) / name).mkdir()
            off += _of(name, place, url)
    return float(off), "units"


def _of(name: str, folder: Path, url: str) -> int:
    plan = json.dumps({"seed": 7, "kills": KILLS, "outages": False, "lives": 6, "step": 1.0})
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.month", str(folder), url, plan]
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    for problem in found["problems"]:
        print(f"{name}: {problem}")
    counts = f"{found['kills']} kills, {found['sessions']} sessions, {found['rows']} rows of the ledger"
    print(f"{name}: {counts}, {found['out_of_balance']} units out of balance")
    return int(found["out_of_balance"]) + len(found["problems"])
