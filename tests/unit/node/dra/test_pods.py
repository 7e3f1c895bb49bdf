"""Whose process it is, by its cgroup."""

import os
from pathlib import Path

import pytest

from gpuspawner.node.dra.pods import Pods, pod_of

POD = "0e45c7a3-2f0c-4b9b-9d5c-3a1f4f1f8b11"


@pytest.mark.parametrize(
    "text",
    [
        f"4:memory:/kubepods/burstable/pod{POD}/0f3c\n",
        f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-0f3c.scope\n",
        f"0::/../../kubepods/pod{POD}/0f3c\n",
    ],
)
def test_of_cgroupfs_and_of_systemd(text: str) -> None:
    assert pod_of(text) == POD


@pytest.mark.parametrize("text", ["", "0::/\n", "0::/system.slice/containerd.service\n", f"0::/pod{POD[:-1]}\n"])
def test_of_no_pod(text: str) -> None:
    assert pod_of(text) is None


def test_a_session_lasts_until_it_is_ended(tmp_path: Path) -> None:
    pods = Pods()
    pods.use("s", [POD])
    assert pods.alive(tmp_path / "s")
    assert not pods.was_started(tmp_path / "s")
    pods.end(tmp_path / "s", 1.0)
    assert not pods.alive(tmp_path / "s")


def test_we_are_in_nobodys_pod(tmp_path: Path) -> None:
    pods = Pods()
    pods.use("s", [POD])
    assert pods.owners([tmp_path / "s"], [os.getpid(), 2**22 - 1]) == {}
