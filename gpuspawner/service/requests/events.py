"""The audit by Jupyter's event system, for what follows a hub's events: each row is a line of JSON in a file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuspawner.errors import Unavailable

_SCHEMA = Path(__file__).with_name("change.yaml")
_NAMES = ("id", "actor", "action", "user", "session", "asked", "why", "source", "status", "hash")


class Events:
    """Writes them to the end of a file. Raises Unavailable where that cannot be."""

    def __init__(self, path: Path) -> None:
        from jupyter_events import EventLogger  # takes seconds, and most services have no such file

        try:
            path.touch(mode=0o600)  # it says who did what
            handler = logging.FileHandler(path, encoding="utf-8")
        except OSError as error:
            raise Unavailable(f"The file of events {path} cannot be written: {error}.") from error
        self._logger = EventLogger(handlers=[handler])
        self._logger.register_event_schema(_SCHEMA)
        self._schema = "https://schema.jupyter.org/gpuspawner/change"

    def say(self, row: Mapping[str, Any]) -> None:
        """Say a row of the audit."""
        self._logger.emit(schema_id=self._schema, data={name: row[name] for name in _NAMES})
