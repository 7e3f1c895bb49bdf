"""`gpuspawner status` where there is nothing to show. With a session: tests/integration/hub/test_faults.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from support.memory_fleet import House, MemoryFleet

from gpuspawner.cli import main
from gpuspawner.client import Client


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


def test_queue_shows_who_waits_and_says_who_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at = House(tmp_path, fleet=MemoryFleet(cards=1))
    transport = at.client._transport
    monkeypatch.setattr(
        Client, "from_env", lambda *_: Client("http://test/api/v1", "admin", transport=cast(Any, transport))
    )
    assert main(["queue"]) == 0
    assert capsys.readouterr().out == "nobody waits\n"
    at.start("ann", "1")
    bob, cyd = (at.start(user, "1/2", wait=True).json()["waiting"]["id"] for user in ("bob", "cyd"))
    assert main(["queue"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"  1  {bob}  bob: 1/2, interactive, since 20")
    assert "for how long is not known. " in first
    assert second.startswith(f"  2  {cyd}  cyd: ")
    asked = ["queue", "change", cyd, "--deadline", "2100-01-01T00:00:00+01:00", "--reason", "a talk"]
    assert main(asked) == 0
    assert capsys.readouterr().out.startswith("cyd: interactive, due 2099-12-31T23:00:00.000+00:00, number 1. ")
    assert main(["queue", "list", "--json"]) == 0
    assert [each["user"] for each in json.loads(capsys.readouterr().out)["queue"]] == ["cyd", "bob"]
    assert main(["queue", "change", cyd, "--deadline", "none", "--class", "batch", "--reason", "x"]) == 0
    assert capsys.readouterr().out.startswith("cyd: batch, number 2. ")
    assert main(["queue", "change", "s-none", "--class", "batch", "--reason", "x"]) == 2
    assert capsys.readouterr().err == "gpuspawner: There is nobody of that name in the queue.\n"
