"""Ways out of a session, to others' files and processes and past its end, tried from inside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from support.common import until
from support.machine import Machine, SessionProgram, machine

from gpuspawner.node.limits import launch
from gpuspawner.processes import start_time

pytestmark = pytest.mark.skipif(launch.probe() != "guarded", reason="this machine allows no namespaces")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="sessions have user ids of their own only under root")

_PTRACE = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def trace(pid):
    "PTRACE_SEIZE, which leaves the other alone where it is allowed."
    if libc.ptrace(0x4206, pid, None, None) == 0:
        return "traced"
    return errno.errorcode[ctypes.get_errno()]
def reads(path):
    try:
        with open(path, "rb") as file:
            file.read(1)
        return "read"
    except OSError as error:
        return errno.errorcode[error.errno]
"""

# Everything below / that this user may write to, without /proc, devices and installed programs.
_WRITABLE = """
import os, stat
def writable():
    found = []
    for folder, folders, files in os.walk("/"):
        # Not the machine's own programs and packages, which are many.
        skipped = ("proc", "dev", "sys", "usr") if folder == "/" else ("site-packages", "node_modules")
        folders[:] = [name for name in folders if name not in skipped]
        for name in [*files, *folders]:
            path = os.path.join(folder, name)
            try:
                if not stat.S_ISLNK(os.lstat(path).st_mode) and os.access(path, os.W_OK):
                    found.append(path)
            except OSError:
                continue
    return found
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("ways"), env={"GPUSPAWNER_EXCESS_SECONDS": "1"}) as found:
        yield found


@pytest.fixture(scope="module")
def ada(made: Machine) -> tuple[dict[str, Any], SessionProgram]:
    return made.start("ada", "1/8")


@pytest.fixture(scope="module")
def mallory(made: Machine) -> tuple[dict[str, Any], SessionProgram]:
    session, program = made.start("mallory", "1/8")
    program(_PTRACE)
    program(_WRITABLE)
    return session, program


Started = tuple[dict[str, Any], SessionProgram]


def _host_pids(made: Machine, session: Started) -> set[int]:
    return launch.session_pids(made.state / "node" / "sessions" / session[0]["id"])


def test_a_process_of_another_session_cannot_be_traced_nor_read(made: Machine, ada: Started, mallory: Started) -> None:
    pids = _host_pids(made, ada)
    assert pids
    for pid in pids:
        assert mallory[1](f"trace({pid})") == "ESRCH"
        assert mallory[1](f"reads('/proc/{pid}/mem')") == "ENOENT"
    assert mallory[1]("trace(1)") == "EPERM"
    assert ada[1]("1 + 1") == 2


@as_root
def test_another_users_files_are_out_of_reach(made: Machine, ada: Started, mallory: Started) -> None:
    ada[1]("open(os.environ['HOME'] + '/diary', 'w').write('mine'); os.chmod(os.environ['HOME'] + '/diary', 0o666)")
    diary = made.state / "users" / "ada" / "diary"
    assert diary.read_text() == "mine"
    assert mallory[1](f"reads({str(diary)!r})") in ("ENOENT", "EACCES")
    for secret in ("secrets/service_token", "node/agent.sqlite", "service/service.sqlite", "run/service.sock"):
        assert (made.state / secret).exists()
        assert mallory[1](f"reads({str(made.state / secret)!r})") in ("ENOENT", "EACCES")


def test_nothing_that_can_be_written_is_anybody_elses(made: Machine, ada: Started, mallory: Started) -> None:
    """Every writable path is filled with rubbish; the limits, the other session and the service do not mind."""
    mallory[1]("paths = writable()")
    writable = mallory[1]("paths")
    home = mallory[1]("os.environ['HOME']")
    own = (home, "/tmp", "/var/tmp", "/run/gpuspawner/usage/usage")
    socket = mallory[1]("os.environ['GPUSPAWNER_SIM_SOCKET']")
    foreign = [path for path in writable if not path.startswith(own) and path != socket]
    # World-writable places of the machine itself (a lock folder, say) are not gpuspawner's to close, nor of use.
    assert [path for path in foreign if "gpuspawner" in path or str(made.state) in path] == []
    limits = made.state / "node" / "sessions" / mallory[0]["id"] / "limit" / "limit"
    before = limits.read_bytes()
    mallory[1](
        "for path in paths:\n"
        f"    if path.startswith({own!r}) and os.path.isfile(path):\n"
        "        with open(path, 'r+b') as file:\n"
        "            file.write(os.urandom(min(os.path.getsize(path), 1 << 20)))"
    )
    assert limits.read_bytes() == before
    assert ada[1]("allocate(1 << 20)") == "CUDA_SUCCESS"
    answer = made.api.get(f"/sessions/{mallory[0]['id']}")
    assert answer.status_code == 200
    assert answer.json()["memory_bytes"] == mallory[0]["memory_bytes"]


def test_nothing_outlives_the_session(made: Machine) -> None:
    """nohup, setsid, a double fork, and a PID namespace within; all of them hold on to nothing."""
    session, program = made.start("eve", "1/8")
    program(
        "import subprocess, sys\n"
        "sleep = [sys.executable, '-c', 'import signal; signal.pause()']\n"
        "for before in (['nohup'], ['setsid'], ['setsid', 'nohup'],\n"
        "               ['unshare', '--user', '--map-root-user', '--pid', '--fork']):\n"
        "    subprocess.Popen(before + sleep, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork():\n"
        "        os._exit(0)\n"
        "    os.execvp(sleep[0], sleep)\n"
        "os.wait()"
    )
    folder = made.state / "node" / "sessions" / session["id"]
    pids = until(lambda: found if len(found := launch.session_pids(folder)) >= 7 else set(), what="the processes")
    program.kill()
    until(lambda: made.api.get(f"/sessions/{session['id']}").json()["state"] == "ended", 30, "the session's end")
    assert [pid for pid in pids if start_time(pid) is not None] == []
