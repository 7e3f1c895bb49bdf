"""The agent's record on disk."""

from __future__ import annotations

import dataclasses
import sqlite3
from pathlib import Path

import pytest

from gpuspawner.node.records import Record, Records

OLD = """CREATE TABLE records (
    session TEXT PRIMARY KEY,
    user TEXT NOT NULL,
    cards TEXT NOT NULL,
    eighths INTEGER NOT NULL CHECK (eighths BETWEEN 1 AND 8),
    state TEXT NOT NULL CHECK (state IN ('live', 'held')),
    launched INTEGER NOT NULL,
    created REAL NOT NULL,
    pids TEXT NOT NULL DEFAULT '[]'
)"""


@pytest.mark.parametrize(
    "schema", [OLD, OLD.replace("BETWEEN 1 AND 8", "BETWEEN 0 AND 8")], ids=["first", "before burst"]
)
def test_records_of_an_older_version_are_kept_and_take_what_is_new(tmp_path: Path, schema: str) -> None:
    path = tmp_path / "agent.sqlite"
    with sqlite3.connect(path) as database:
        database.execute(schema)
        database.execute("INSERT INTO records VALUES ('s-1', 'ann', '[\"GPU-1\"]', 2, 'live', 1, 5.0, '[]')")
    database.close()
    kept = Record("s-1", "ann", ("GPU-1",), 2, "live", True, 5.0)
    without = Record("s-2", "bob", (), 0, "live", False, 6.0, burst=True)
    for _ in range(2):  # the second time there is nothing left to change
        records = Records(path)
        records.put(without)
        assert records.get("s-1") == kept
        with pytest.raises(sqlite3.IntegrityError):
            records.put(dataclasses.replace(without, session="s-3", eighths=9))
        records.close()
    again = Records(path)
    assert again.get("s-2") == without
    assert again.charged() == {"GPU-1": 2}
    again.close()
