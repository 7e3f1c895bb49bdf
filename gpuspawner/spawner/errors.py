"""Refusals that JupyterHub shows to a person as they are, and does not count as failed spawns."""

from __future__ import annotations

import logging
from typing import Any

from tornado import web

from gpuspawner.errors import GPUSpawnerError


class Refused(web.HTTPError):
    """A start that is refused with one plain sentence.

    JupyterHub shows `jupyterhub_message` in the form and `log_message` in its API's answers. Only statuses of
    500 and above count towards its limit of consecutive spawn failures.
    """

    def __init__(self, status: int, message: str, *, code: str = "refused") -> None:
        # tornado formats the message with %, so a lone % of a user's text must not reach it
        super().__init__(status, message.replace("%", "%%"))
        self.jupyterhub_message = message
        self.code = code

    @classmethod
    def from_error(cls, error: GPUSpawnerError, status: int = 400) -> Refused:
        """The refusal that tells `error`."""
        return cls(status, error.message, code=error.code)

    @classmethod
    def from_service(cls, status: int, body: Any) -> Refused:
        """The refusal for the service's answer: its own sentence, 422 told as 400 (what JupyterHub's API
        promises for bad options), anything that is not the caller's doing as 503."""
        error = body.get("error") if isinstance(body, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        if not isinstance(message, str) or not message:
            message = f"The GPU service answered with status {status} and no explanation."
        if status == 422:
            status = 400
        elif status not in (400, 404, 409, 429) and (status, code) not in ((403, "policy"), (403, "budget")):
            status = 503
        return cls(status, message, code=str(code or "refused"))


class ServiceDown(Refused):
    """The service does not answer."""

    def __init__(self) -> None:
        super().__init__(
            503,
            "The GPU service does not answer, so nothing can be started at the moment. "
            "Running servers keep their shares. Please try again in a minute.",
            code="unavailable",
        )


class _InOneLine(logging.Filter):
    """Takes the traceback off what is logged of a refusal: a person chose what is not to be had, nothing is broken."""

    def filter(self, record: logging.LogRecord) -> bool:
        refused = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(refused, Refused) and refused.status_code < 500:
            record.msg, record.args = f"{record.getMessage()}: {refused.jupyterhub_message}", ()
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.INFO, "INFO"
        return True


_IN_ONE_LINE = _InOneLine()


def log_refusals_in_a_line() -> None:
    """In JupyterHub's own logs, which otherwise have pages of tracebacks for each refused choice."""
    for name in ("JupyterHub", "tornado.application"):
        logging.getLogger(name).addFilter(_IN_ONE_LINE)  # the same one again is not added
