"""The one exception type that this library raises for a person to read."""

from __future__ import annotations

from typing import Any


class RuntimeFault(Exception):
    """Something that a person may be told: a stable `code`, one plain sentence, and where it applies the `field`,
    what was `given` (cut to 80 characters) and what is `allowed`."""

    def __init__(
        self, message: str, *, code: str = "invalid", field: str | None = None, given: Any = None, allowed: Any = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.field = field
        self.given = given if given is None or isinstance(given, bool | int | float) else str(given)[:80]
        self.allowed = allowed
