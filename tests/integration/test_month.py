"""A month of 300 people on SQLite and PostgreSQL, the service killed again and again: it balances to the unit.

With `GPUSPAWNER_MONTH=full` people do as much as in a real month, which takes a quarter of an hour.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.postgres import postgres

ROOT = Path(__file__).parents[2]
#: In the suite somebody does something every few hours; else every few minutes.
FULL = os.environ.get("GPUSPAWNER_MONTH") == "full"
PLAN: dict[str, Any] = {"step": 0.8, "actions": 6, "lives": 30} if FULL else {"step": 34, "actions": 7, "lives": 90}
LIMIT = 3600 if FULL else 170


def month(folder: Path, url: str, **plan: Any) -> dict[str, Any]:
    """What was found after a month."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.month", str(folder), url, json.dumps(plan)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(found)
    return found


def balances(found: dict[str, Any]) -> None:
    """It does, and that was no wonder of an empty house."""
    assert found["problems"] == []
    assert found["out_of_balance"] == 0
    assert found["kills"] >= 4
    assert found["outages"] >= 1
    assert found["compared"] >= 150
    assert found["users"] >= 100


@pytest.mark.timeout(LIMIT + 10)
def test_on_sqlite(tmp_path: Path) -> None:
    balances(month(tmp_path, f"sqlite:///{tmp_path / 'service.sqlite'}", seed=1, **PLAN))


@pytest.mark.timeout(LIMIT + 10)
def test_on_postgresql(tmp_path: Path) -> None:
    with postgres() as cluster:
        balances(month(tmp_path, cluster.database(), seed=2, **PLAN))
