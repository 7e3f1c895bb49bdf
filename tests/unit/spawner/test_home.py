"""Homes belong to their users, who may put anything in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuspawner.spawner import home


@pytest.fixture(autouse=True)
def _a_tour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "tour_bytes", lambda: b"{}")


def test_a_new_home_has_the_tour(tmp_path: Path) -> None:
    home.prepare(tmp_path / "users" / "ann", None, None)
    assert (tmp_path / "users" / "ann" / home.TOUR).read_bytes() == b"{}"
    assert (tmp_path / "users" / "ann").stat().st_mode & 0o777 == 0o700


def test_a_tour_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / home.TOUR).write_text("mine")
    home.prepare(tmp_path, None, None)
    assert (tmp_path / home.TOUR).read_text() == "mine"


def test_a_link_in_place_of_the_tour_is_not_followed(tmp_path: Path) -> None:
    users = tmp_path / "ann"
    users.mkdir()
    (users / home.TOUR).symlink_to(tmp_path / "elsewhere")
    home.prepare(users, None, None)
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_in_place_of_the_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "ann").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="ann"):
        home.prepare(tmp_path / "ann", None, None)


def test_no_room_for_the_tour_is_no_reason_not_to_start(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys; from pathlib import Path; from gpuspawner.spawner import home\n"
        "home.tour_bytes = lambda: b'x' * 100_000\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "home.prepare(Path(sys.argv[1]), None, None)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "ann")], check=True)
    assert list((tmp_path / "ann").iterdir()) == [], "half a tour would stay for good"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_home_and_tour_belong_to_the_user(tmp_path: Path) -> None:
    home.prepare(tmp_path / "ann", 54321, 54321)
    for path in (tmp_path / "ann", tmp_path / "ann" / home.TOUR):
        assert (path.stat().st_uid, path.stat().st_gid) == (54321, 54321)
