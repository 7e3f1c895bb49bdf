"""Eighths that nobody else may have though they are not in force: what a forced shrink leaves in use."""

from pathlib import Path

import pytest

from gpuspawner.node.records import Record, Records


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "agent.sqlite")


def test_what_is_over_is_taken_too(records: Records) -> None:
    records.put(Record("a", "ann", ("GPU-1",), 2, "live", True, 0.0, over=4))
    records.put(Record("b", "bob", ("GPU-1",), 1, "held", True, 0.0))
    assert records.charged() == {"GPU-1": 7}
    assert records.charged(without="a") == {"GPU-1": 1}


def test_it_is_remembered(records: Records, tmp_path: Path) -> None:
    records.put(Record("a", "ann", ("GPU-1",), 2, "live", True, 0.0, over=4))
    records.close()
    found = Records(tmp_path / "agent.sqlite").get("a")
    assert found is not None
    assert (found.eighths, found.charged) == (2, 6)


def test_records_of_before_have_nothing_over(records: Records, tmp_path: Path) -> None:
    records.put(Record("a", "ann", ("GPU-1",), 2, "live", True, 0.0))
    with records.database:
        records.database.execute("ALTER TABLE records DROP COLUMN over")
    records.close()
    found = Records(tmp_path / "agent.sqlite").get("a")
    assert found is not None
    assert found.charged == 2
