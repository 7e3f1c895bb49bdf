"""Recognising a process again although pids are reused."""

from __future__ import annotations

import os
import subprocess
import sys

from gpuspawner.processes import is_same, start_time


def test_a_process_is_itself_until_it_ends() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = start_time(process.pid)
    assert started is not None
    assert is_same(process.pid, started)
    assert not is_same(process.pid, started + 1)  # the same pid, another process
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended and is not reaped: a zombie
    assert start_time(process.pid) is None
    process.communicate()
    assert not is_same(process.pid, started)


def test_no_process_is_nobody() -> None:
    assert not is_same(0, 0)
