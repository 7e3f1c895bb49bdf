"""`gpuspawner status` where there is nothing to show. With a session: tests/integration/hub/test_faults.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuspawner.cli import main


def test_status_says_that_nothing_was_ever_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUSPAWNER_STATE", str(tmp_path / "state"))
    assert main(["status"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"gpuspawner: It was never started with the state folder {tmp_path}/state. Start it")


def test_status_says_that_it_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "service_token").write_text("secret")
    monkeypatch.setenv("GPUSPAWNER_STATE", str(tmp_path))
    assert main(["status", "--json"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("gpuspawner: It is not running. Start it with: ")
    assert "secret" not in told.err


def test_a_bad_setting_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GPUSPAWNER_PORT", "80")
    assert main(["status"]) == 2
    assert "GPUSPAWNER_PORT: '80' is not allowed" in capsys.readouterr().err
