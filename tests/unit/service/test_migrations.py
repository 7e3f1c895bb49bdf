"""A database that an earlier version made is brought up to date, and nothing in it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from gpuspawner.service.database import open_database
from gpuspawner.service.store import Store
from gpuspawner.service.tariff import Tariff

SESSION = {
    "id": "s-1",
    "user": "ann",
    "server": "",
    "state": "running",
    "share": "1/4",
    "model": "h100-80gb",
    "cards": '["GPU-1"]',
    "created_ms": 5,
    "ended_ms": None,
    "end_reason": None,
}
START = {
    "at_ms": 5,
    "session": "s-1",
    "user": "ann",
    "server": "",
    "kind": "start",
    "model": "h100-80gb",
    "cards": '["GPU-1"]',
    "eighths": 2,
    "price_micros": 1_000_000,
    "currency": "EUR",
    "actor": "hub",
    "reason": "",
}


def database_of_revision(path: Path, revision: str) -> None:
    """As a service of that revision leaves it, with one session in it."""
    config = Config()
    config.set_main_option("script_location", "gpuspawner.service:migrations")
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        for table, row in (("sessions", SESSION), ("ledger", START)):
            columns = ", ".join(f'"{name}"' for name in row)
            values = ", ".join(f":{name}" for name in row)
            connection.execute(sa.text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), row)
    engine.dispose()


def test_sessions_from_before_burst_have_none(tmp_path: Path) -> None:
    path = tmp_path / "service.sqlite"
    database_of_revision(path, "0001")
    for expected in (False, True):  # the second opening finds what the first one left
        engine = open_database(f"sqlite:///{path}")
        store = Store(engine, Tariff())
        row = store.session("s-1")
        assert row is not None
        assert {name: getattr(row, name) for name in SESSION} == SESSION
        assert row.burst is expected
        (entry,) = store.ledger("s-1")
        assert {name: getattr(entry, name) for name in START} == START
        with pytest.raises(sa.exc.DatabaseError), engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM ledger"))
        store.set_burst("s-1", True)
        engine.dispose()
