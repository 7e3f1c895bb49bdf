"""Refusals in JupyterHub's log."""

from __future__ import annotations

import logging

import pytest

from gpuspawner.spawner.errors import Refused, ServiceDown, log_refusals_in_a_line


@pytest.mark.parametrize("name", ["JupyterHub", "tornado.application"])
def test_a_refusal_is_a_line_and_what_is_broken_a_traceback(name: str, caplog: pytest.LogCaptureFixture) -> None:
    log_refusals_in_a_line()
    log = logging.getLogger(name)
    for error in (Refused(409, "100 % of a card cannot be started now."), ServiceDown(), ValueError("broken")):
        try:
            raise error
        except Exception:
            log.exception("Failed to spawn %s", "ann")
    told, down, broken = caplog.records
    assert told.getMessage() == "Failed to spawn ann: 100 % of a card cannot be started now."
    assert (told.levelname, told.exc_info) == ("INFO", None)
    assert down.exc_info
    assert broken.exc_info
