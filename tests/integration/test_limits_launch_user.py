"""The launcher for and as somebody who is not root: user namespaces, none at all, and further groups."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest
from support.common import gone
from support.limits import fake_driver, wait_until

from gpuspawner.node.limits import build, launch

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start sessions of others")
UNPRIVILEGED = 65534


@as_root
def test_an_ordinary_user_gets_the_same_by_user_namespaces(tmp_path: Path) -> None:
    _in_child_as(UNPRIVILEGED, tmp_path, "guarded")


@as_root
def test_an_ordinary_user_needs_no_folder_of_ours_under_run(tmp_path: Path) -> None:
    _in_child_as(UNPRIVILEGED, tmp_path, "guarded", bare_run=True)


@as_root
def test_without_namespaces_the_grade_is_advisory_and_the_session_still_ends_whole(tmp_path: Path) -> None:
    _in_child_as(UNPRIVILEGED, tmp_path, "advisory")


def _bare_run() -> None:
    """In a mount namespace of this process's own: a /run with something in it, but nothing of ours."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, recursive_private = 0x00020000, 0x4000 | 0x40000
    assert libc.unshare(new_namespace) == 0
    assert libc.mount(b"none", b"/", None, recursive_private, None) == 0
    assert libc.mount(b"none", b"/run", b"tmpfs", 0, b"mode=0755") == 0
    Path("/run/theirs").mkdir()
    Path("/run/theirs/file").write_text("theirs")
    Path("/run/link").symlink_to("theirs/file")


def _in_child_as(uid: int, tmp_path: Path, grade: str, bare_run: bool = False) -> None:
    """Runs the tests that fit an ordinary user, in a child that is one; Python itself may lie where it cannot go."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder.is_relative_to("/tmp/pytest-of-root"):
            folder.chmod(0o755)
    (tmp_path / "driver").mkdir()
    made = fake_driver(tmp_path / "driver")
    folder = tmp_path / "own"
    folder.mkdir()
    os.chown(folder, uid, uid)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if bare_run:
                _bare_run()
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.chdir("/")
            launch._probe.cache_clear()
            if grade == "advisory":
                launch._probe = lambda: ("advisory", "for a test")  # type: ignore[assignment]
            problem = _ordinary(
                folder, made, grade, "cat /run/link && test -e /run/gpuspawner/limits" if bare_run else "true"
            )
        except BaseException as error:
            problem = repr(error)
        os.write(write, problem.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        problem = pipe.read()
    os.waitpid(pid, 0)
    if problem.startswith("skip"):
        pytest.skip(problem)
    assert problem == ""


def _ordinary(folder: Path, driver: build.DriverFiles, grade: str, check: str) -> str:
    state = folder / "state"
    (state / "secrets").mkdir(parents=True)
    (state / "secrets" / "token").write_text("a secret")
    if launch._probe()[0] != grade:
        return f"skip: {launch._probe()}"
    plan = launch.SessionPlan(state / "node" / "s", state / "users" / "u", None, None, "u", driver, hide=[state])
    made = launch.prepare(plan)
    assert made.grade == grade
    script = (
        f"id -u; cat {state}/secrets/token 2>/dev/null || echo hidden; "
        f"{check} || exit 4; setsid sleep 1000 & sleep 1001 & exit 3"
    )
    process = subprocess.Popen(
        [*made.argv_prefix, "sh", "-c", script],
        env={"PATH": "/usr/bin:/bin"} | made.env,
        cwd=plan.home,
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = process.communicate(timeout=20)
    secret = "hidden" if grade == "guarded" else "a secret"
    assert out.split("\n")[:2] == [str(os.getuid()), secret], out
    assert process.returncode == 3, process.returncode
    assert not launch.session_alive(plan.session_dir)
    again = subprocess.Popen(
        [*made.argv_prefix, "sh", "-c", "setsid sleep 1002 & exec sleep 1003"], env={"PATH": "/usr/bin:/bin"} | made.env
    )
    wanted = 4 if grade == "guarded" else 2  # init, sh that became sleep, setsid that became sleep

    def started() -> set[int]:
        pids = launch.session_pids(plan.session_dir)
        return pids if len(pids) >= wanted - 1 else set()

    pids = wait_until(started, "the start")
    again.kill()
    again.wait(20)
    wait_until(lambda: not launch.session_alive(plan.session_dir), "the end")
    assert gone(pids)()
    return ""


@as_root
def test_a_session_is_in_the_groups_that_its_device_files_need(tmp_path: Path, driver: build.DriverFiles) -> None:
    state, home = tmp_path / "state" / "s", tmp_path / "home"
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to("/tmp/pytest-of-root"):
            folder.chmod(0o755)
    plan = launch.SessionPlan(state, home, UNPRIVILEGED, UNPRIVILEGED, "u", driver, groups=(1_900_000_007, 44))
    made = launch.prepare(plan)
    done = subprocess.run(
        [*made.argv_prefix, "id", "-G"],
        env={"PATH": "/usr/bin:/bin"} | made.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == {str(UNPRIVILEGED), "1900000007", "44"}
