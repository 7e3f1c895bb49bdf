"""The service's database: SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from gpuspawner.errors import Unavailable

#: PostgreSQL's lock of whoever changes tables; any number that nobody else uses.
_MIGRATION_LOCK = text("SELECT pg_advisory_xact_lock(7215049)")


def open_database(url: str) -> Engine:
    """The engine for a SQLAlchemy URL, its tables made or brought up to date.

    Raises Unavailable, naming the database, where that is not possible.
    """
    try:
        return _open(url)
    except (SQLAlchemyError, CommandError) as error:
        try:
            shown = make_url(url).render_as_string(hide_password=True)
        except ArgumentError:  # whatever it is, it may hold a password
            shown = "of GPUSPAWNER_DATABASE_URL"
        cause = getattr(error, "orig", None) or error
        raise Unavailable(f"The database {shown} cannot be used: {cause}.", code="storage") from error


def _open(url: str) -> Engine:
    a_file = make_url(url).get_backend_name() == "sqlite"
    _bring_up_to_date(url, a_file)
    engine = create_engine(url, pool_pre_ping=not a_file)  # a server may have closed a connection meanwhile
    if a_file:
        event.listen(engine, "connect", _durable_sqlite)
    return engine


def _bring_up_to_date(url: str, a_file: bool) -> None:
    """Make or change the tables, all in one transaction: a service that is killed meanwhile leaves them as they were.
    One service at a time."""
    engine = create_engine(url, poolclass=NullPool)
    if a_file:
        # Python's driver begins no transaction by itself for what changes tables
        event.listen(engine, "connect", _durable_sqlite)
        event.listen(engine, "connect", lambda connection, _record: setattr(connection, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    config = Config()
    config.set_main_option("script_location", "gpuspawner.service:migrations")
    with engine.begin() as connection:
        if not a_file:
            connection.execute(_MIGRATION_LOCK)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _durable_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    # A ledger row that was answered for must be there after a power cut.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA busy_timeout = 10000")
    cursor.close()
