"""A database that an earlier version made is brought up to date, and nothing in it is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import alembic.op
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from gpuspawner.errors import Unavailable
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


@pytest.mark.parametrize("start", [None, "0003"])
def test_one_that_breaks_off_leaves_the_tables_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str | None
) -> None:
    path = tmp_path / "service.sqlite"
    if start is not None:
        database_of_revision(path, start)

    def tables() -> set[str]:
        engine = sa.create_engine(f"sqlite:///{path}")
        names = set(sa.inspect(engine).get_table_names())
        engine.dispose()
        return names

    before = tables()
    with monkeypatch.context() as patch:
        patch.setattr("alembic.op.create_table", broken_at("usage", alembic.op.create_table))
        with pytest.raises(Unavailable, match="broke off"):
            open_database(f"sqlite:///{path}")
    assert tables() == before
    open_database(f"sqlite:///{path}").dispose()
    assert "usage" in tables()


def broken_at(table: str, create: Any) -> Any:
    def made(name: str, *columns: Any, **more: Any) -> Any:
        if name == table:
            raise sa.exc.OperationalError("CREATE TABLE", {}, Exception("broke off"))
        return create(name, *columns, **more)

    return made


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
