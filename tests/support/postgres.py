"""A PostgreSQL cluster of the tests' own, on a socket in a folder, run by an ordinary user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import create_engine, text

from .common import until


def _find(name: str) -> Path | None:
    found = shutil.which(name)
    if found:
        return Path(found)
    return max(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), default=None)


def installed() -> bool:
    """Whether PostgreSQL is."""
    return _find("initdb") is not None


def _program(name: str) -> Path:
    found = _find(name)
    if found is None:
        pytest.skip("PostgreSQL is not installed: sudo apt install postgresql")
    return found


class Postgres:
    """The cluster. `database` makes an empty database and gives its SQLAlchemy URL."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        # PostgreSQL refuses to run as root
        self._as = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []

    def _url(self, name: str) -> str:
        user = "postgres" if self._as else "tests"
        return f"postgresql+psycopg://{user}@/{name}?host={quote(str(self.folder), safe='')}"

    def make(self) -> None:
        """Make the cluster."""
        if self._as:
            shutil.chown(self.folder, "postgres")
        user = "postgres" if self._as else "tests"
        options = ["-U", user, "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        command = [*self._as, str(_program("initdb")), "-D", str(self.data), *options]
        subprocess.run(command, check=True, capture_output=True, cwd="/")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = ["-D", str(self.data), "-k", str(self.folder), "-c", "listen_addresses=", "-c", "max_connections=60"]
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [*self._as, str(_program("postgres")), *options], stdout=log, stderr=log, cwd="/"
            )
        until(self._answers, 90, "PostgreSQL to answer")

    def _answers(self) -> bool:
        engine = create_engine(self._url("postgres"))
        try:
            with engine.connect():
                return True
        except Exception:
            return False
        finally:
            engine.dispose()

    def stop(self) -> None:
        """End it at once; what is committed stays."""
        pid = self.data / "postmaster.pid"
        if pid.exists():
            os.kill(int(pid.read_text().split()[0]), signal.SIGQUIT)
        if self._process is not None:
            self._process.wait(60)

    def database(self) -> str:
        """A new database; its URL."""
        self._count += 1
        name = f"t{self._count}"
        engine = create_engine(self._url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self._url(name)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A cluster that runs. Skips the test where PostgreSQL is not installed."""
    with tempfile.TemporaryDirectory(prefix="gpuspawner-pg-") as folder:
        made = Postgres(Path(folder))
        made.make()
        made.start()
        try:
            yield made
        finally:
            made.stop()
