"""Logs are few and do not fill the disk."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
from pathlib import Path

import pytest
from support.common import until

from gpuspawner.supervisor import logs


def test_logs_of_earlier_runs_are_numbered_and_few(tmp_path: Path) -> None:
    for run in range(8):
        (tmp_path / "hub.log").write_text(str(run))
        logs.rotate(tmp_path)
    assert not (tmp_path / "hub.log").exists()
    assert [(tmp_path / f"hub.log.{number}").read_text() for number in range(1, 6)] == ["7", "6", "5", "4", "3"]
    assert len(list(tmp_path.iterdir())) == 5


def test_a_log_that_is_too_long_keeps_its_end_and_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "s-1.log"
    with log.open("ab", buffering=0) as server:
        server.write(b"x" * ((1 << 20) - 6) + b"\nlast\n")
        assert not logs.cut(log, longest=1 << 20, kept=10)
        server.write(b"end\n")
        assert logs.cut(log, longest=1 << 20, kept=10)
        server.write(b"after\n")
    first, *rest = log.read_bytes().splitlines()
    assert first.startswith(b"[the log was longer than ")
    assert rest == [b"", b"last", b"end", b"after"]


@pytest.mark.parametrize("trick", ["sparse", "reserved", "elsewhere"])
def test_a_session_that_plays_with_its_log_gains_nothing(tmp_path: Path, trick: str) -> None:
    log = tmp_path / "s-1.log"
    server = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        if trick == "sparse":
            os.ftruncate(server, 1 << 40)
        elif trick == "reserved":
            keep_size = 1
            if ctypes.CDLL(None).fallocate(server, keep_size, ctypes.c_long(0), ctypes.c_long(4 << 20)):
                pytest.skip("this file system reserves no room past the end of a file")
            assert log.stat().st_size == 0
        else:
            fcntl.fcntl(server, fcntl.F_SETFL, 0)
            os.pwrite(server, b"far away", 1 << 40)
        assert logs.cut(log, longest=1 << 20, kept=1000)
    finally:
        os.close(server)
    assert log.stat().st_size < 2000
    assert log.stat().st_blocks * 512 <= 1 << 16


def test_no_log_that_is_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x" * 5000)
    (tmp_path / "s-1.log").symlink_to(tmp_path / "other")
    assert not logs.cut(tmp_path / "s-1.log", longest=10, kept=10)
    assert (tmp_path / "other").stat().st_size == 5000
    assert not logs.cut(tmp_path / "none.log")


async def test_all_logs_are_looked_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LONGEST", 1 << 20)
    monkeypatch.setattr(logs.cut, "__defaults__", (1 << 20, 1000))
    (tmp_path / "servers").mkdir()
    found = [tmp_path / "hub.log", tmp_path / "servers" / "s-1.log"]
    for log in found:
        log.write_bytes(b"x" * (2 << 20))
    task = asyncio.create_task(logs.keep_short(tmp_path))
    try:
        await asyncio.to_thread(until, lambda: all(log.stat().st_size < 1 << 20 for log in found), 60)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
