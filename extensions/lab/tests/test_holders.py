"""Pids brought to kernels and notebooks: real processes below a stand-in for the kernel manager."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpuspawner_lab.holders import command, find_holders
from gpuspawner_lab.watchers import MOST_VIEWERS, Watchers


class Kernels:
    """As much of Jupyter's kernel manager as is asked."""

    def __init__(self, **pids: int | None) -> None:
        self.kernels = {
            name: SimpleNamespace(provisioner=SimpleNamespace(pid=pid), execution_state="idle", kernel_name="python3")
            for name, pid in pids.items()
        }

    def list_kernel_ids(self) -> list[str]:
        return list(self.kernels)

    def get_kernel(self, kernel_id: str) -> Any:
        return self.kernels[kernel_id]


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A process and its child, as a kernel and a worker that it started."""
    source = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process.pid, child
    os.kill(child, 9)
    process.communicate()


def opened(kernel: str, path: str) -> dict[str, Any]:
    return {"id": f"session-of-{kernel}", "path": path, "name": Path(path).name, "kernel": {"id": kernel}}


def test_a_child_of_a_kernel_counts_for_its_notebook(family: tuple[int, int]) -> None:
    kernel, child = family
    found = find_holders([child, kernel], Kernels(k1=kernel), [opened("k1", "deep/train.ipynb")])
    (holder,) = found
    assert (holder.kind, holder.title, holder.path) == ("kernel", "train.ipynb", "deep/train.ipynb")
    assert (holder.kernel_id, holder.session_id, holder.state) == ("k1", "session-of-k1", "idle")
    assert holder.pids == tuple(sorted((kernel, child)))


def test_kernels_that_hold_nothing_come_after_and_other_processes_last(family: tuple[int, int]) -> None:
    kernel, child = family
    found = find_holders([child, os.getpid()], Kernels(a=None, k1=kernel), [opened("a", "a.ipynb")])
    assert [(one.kind, one.pids) for one in found] == [
        ("kernel", (child,)),
        ("kernel", ()),
        ("process", (os.getpid(),)),
    ]
    assert found[0].title == "kernel k1"  # no notebook is open on it


def test_a_process_that_is_gone_is_still_named() -> None:
    (holder,) = find_holders([2**22 - 7], Kernels(), [])
    assert (holder.kind, holder.title) == ("process", f"process {2**22 - 7}")


def test_the_command_leaves_out_what_may_be_secret(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; print(flush=True); sys.stdin.read()")
    process = subprocess.Popen(
        [sys.executable, script, "--token=swordfish"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    shown = command(process.pid)
    process.communicate()
    assert shown == f"{Path(sys.executable).name} train.py"


def test_names_in_the_process_table_that_would_mislead_a_parser(tmp_path: Path) -> None:
    (tmp_path / "50").mkdir()
    (tmp_path / "50" / "stat").write_text("50 (evil) S 1 (x) S 40 1 1 0")
    (tmp_path / "50" / "cmdline").write_bytes(b"\x1b[31mevil\0run.py\0")
    (holder,) = find_holders([50], Kernels(k=40), [], tmp_path)
    assert holder.kernel_id == "k"
    (holder,) = find_holders([50], Kernels(), [], tmp_path)
    assert holder.title == "\ufffd[31mevil run.py"


def test_leases_end_by_themselves_and_by_word() -> None:
    now = [0.0]
    watchers = Watchers(lambda: now[0])
    watchers.hold("tab", 30)
    watchers.hold("panel", 10, detail=True)
    assert watchers.looking
    assert watchers.detail
    now[0] = 11
    assert watchers.looking
    assert not watchers.detail
    watchers.hold("tab", 0)
    assert not watchers.looking
    for number in range(2 * MOST_VIEWERS):
        watchers.hold(str(number), 1 + number)
    assert len(watchers._leases) == MOST_VIEWERS
