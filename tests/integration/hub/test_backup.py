"""Backup while a session runs, and a restore, as docs/how-to/backup.md has them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.hub import Hub
from support.stack import Stack, stack

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.hub, pytest.mark.timeout(240)]


def backup(hub: Stack, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "tools/backup", target], env=hub.env, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_restored_backup_has_the_ledger_and_the_users(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with stack(tmp_path / "state") as hub:
        with Hub(hub).user("ida") as user:
            session = user.start({"share": "1/4"})
            done = backup(hub, kept)
            assert done.returncode == 0, done.stderr
            assert kept.stat().st_mode & 0o777 == 0o700
            again = backup(hub, kept)
            assert again.returncode != 0
            assert "exists: name a folder that does not" in again.stderr
        passwords = hub.user_password
        hub.stop()
        hub.down()
        shutil.move(hub.state, tmp_path / "aside")
        shutil.copytree(kept, hub.state)
        hub.up()
        assert hub.user_password == passwords
        with hub.service() as service:
            rows = service.get("/events", params={"session": session["id"]}).json()["events"]
            assert rows[-1]["kind"] == "start"
            assert rows[0]["kind"] in ("end", "free")
            assert service.get("/sessions").json()["sessions"] == []
            offers = service.get("/offers").json()["offers"]
        assert sum(offer["free_places"] for offer in offers if offer["share"] == "1/8") == 16
        with Hub(hub).user("ida") as user:
            assert user.start({"share": "1/8"})["share"] == "1/8"
