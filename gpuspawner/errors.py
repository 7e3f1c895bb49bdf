"""The one exception type that rooms raise for a person to read, and its subclasses by HTTP status."""

from __future__ import annotations

from typing import Any

_GIVEN_SHOWN = 80


def shorten(given: Any) -> Any:
    """`given` as it may be repeated in an error: JSON scalars as they are, everything else by its repr, cut.

    Text comes out as text that has a UTF-8 form: JSON may hold halves of characters (`"\\ud800"`), which have none.
    """
    if given is None or (isinstance(given, bool | int) and abs(given) < 10**15):
        return given
    text = given if isinstance(given, str) else _repr(given)
    shown = text[:_GIVEN_SHOWN].encode("utf-8", "backslashreplace").decode("utf-8")
    return shown if len(text) <= _GIVEN_SHOWN else f"{shown}… ({len(text)} characters)"


def _repr(given: Any) -> str:
    try:
        return repr(given)
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
        return f"<{type(given).__name__}>"


class GPUSpawnerError(Exception):
    """Something that a caller may be told: a stable `code`, one plain sentence, and where it applies
    the field, what was given and what is allowed. `extra` holds further figures (e.g. bytes to free)."""

    code = "error"
    status = 400

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        field: str | None = None,
        given: Any = None,
        allowed: Any = None,
        **extra: Any,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.field = field
        self.given = shorten(given)
        self.allowed = allowed
        self.extra = extra

    def as_dict(self) -> dict[str, Any]:
        """The error as the REST API shows it."""
        return {
            "code": self.code,
            "message": self.message,
            "field": self.field,
            "given": self.given,
            "allowed": self.allowed,
            **self.extra,
        }


class InvalidInput(GPUSpawnerError):
    """A value that is not of the allowed form (422)."""

    code = "invalid"
    status = 422


class NotAllowed(GPUSpawnerError):
    """The caller may not do this (403)."""

    code = "forbidden"
    status = 403


class NotFound(GPUSpawnerError):
    """No such thing, or none that the caller may see (404)."""

    code = "not_found"
    status = 404


class Conflict(GPUSpawnerError):
    """Well-formed, but not possible in the present state (409)."""

    code = "conflict"
    status = 409


class NoRoom(Conflict):
    """Not enough eighths are free."""

    code = "no_room"


class InUse(Conflict):
    """A voluntary shrink below what is in use; `need_to_free_bytes` says by how much."""

    code = "in_use"


class Unavailable(GPUSpawnerError):
    """A part that is needed does not answer now (503)."""

    code = "unavailable"
    status = 503
