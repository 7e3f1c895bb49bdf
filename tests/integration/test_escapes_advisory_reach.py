"""What a session reaches of others where no namespace parts them, and what comes of that: mostly it works.

By design nothing protects one session from another in advisory grade, and the security page says so for each of these;
a test that finds one of them held would find that page wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.common import until
from support.escapes import ADVISORY, GIB, WITHIN, Mallory
from support.machine import Machine, machine

from gpuspawner.node.limits import launch
from gpuspawner.processes import start_time

_REACH = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def trace(pid):
    return "traced" if libc.ptrace(0x4206, pid, None, None) == 0 else errno.errorcode[ctypes.get_errno()]
def reads(path):
    try:
        with open(path, "rb") as file:
            return len(file.read(100)) > 0
    except OSError as error:
        return errno.errorcode[error.errno]
def command(path, words):
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    raw.connect(path)
    raw.send(struct.pack('=4I2Q', 0x4D495347, 8, 0, 0, 0, 0) + words)
    return struct.unpack("=IiQ", raw.recv(70000)[:16])[1]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    settings = {"GPUSPAWNER_EXCESS_SECONDS": "1", "GPUSPAWNER_ENFORCERS": "shim"}
    with machine(tmp_path_factory.mktemp("reach"), prefix=ADVISORY, env=settings) as found:
        yield found


@pytest.fixture
def ada(made: Machine) -> Iterator[Mallory]:
    yield from _session(made)


@pytest.fixture
def mallory(made: Machine) -> Iterator[Mallory]:
    yield from _session(made)


def _session(made: Machine) -> Iterator[Mallory]:
    found = Mallory(made, len(made.programs))
    found.program(_REACH)
    yield found
    found.program.kill()
    until(lambda: found.shown()["state"] == "ended", 30, "the session's end")


def _pids(made: Machine, of: Mallory) -> set[int]:
    return launch.session_pids(made.state / "node" / "sessions" / of.session["id"])


@pytest.mark.skipif(
    os.geteuid() != 0 and Path("/proc/sys/kernel/yama/ptrace_scope").exists(),
    reason="Yama keeps users from tracing what they did not start",
)
def test_another_sessions_process_can_be_traced_and_read(made: Machine, ada: Mallory, mallory: Mallory) -> None:
    pid = max(_pids(made, ada))
    assert mallory.program(f"reads('/proc/{pid}/environ')") is True
    assert mallory.program(f"trace({pid})") == "traced"


def test_another_users_files_and_the_secrets_can_be_read(made: Machine, ada: Mallory, mallory: Mallory) -> None:
    diary = Path(ada.program("os.environ['HOME']")) / "diary"
    ada.program(f"open({str(diary)!r}, 'w').write('mine')")
    assert mallory.program(f"reads({str(diary)!r})") is True
    for secret in ("secrets/service_token", "node/agent.sqlite", "service/service.sqlite"):
        assert mallory.program(f"reads({str(made.state / secret)!r})") is True


def test_the_simulated_cards_can_be_commanded(made: Machine, mallory: Mallory) -> None:
    control = f"{made.cards.socket}.control"
    assert mallory.program(f"command({control!r}, b'state')") == 0
    inside = mallory.program("os.environ['GPUSPAWNER_SIM_SOCKET']")
    assert mallory.program(f"command({inside!r}, b'state')") != 0, "that socket takes none from anybody"


def test_rubbish_in_ones_own_files_harms_nobody_else(made: Machine, ada: Mallory, mallory: Mallory) -> None:
    """Its limit and usage files, and the lock that says who it is."""
    folder = made.state / "node" / "sessions" / mallory.session["id"]
    mallory.program(
        "for name in ('limit/limit', 'usage/usage', 'alive'):\n"
        f"    with open({str(folder)!r} + '/' + name, 'r+b') as file:\n"
        "        file.write(os.urandom(min(os.path.getsize(file.name), 1 << 16)))"
    )
    assert mallory.program("allocate(1 << 20)") == "CUDA_ERROR_OUT_OF_MEMORY", "a torn limit file means no memory"
    assert ada.program("allocate(1 << 20)") == "CUDA_SUCCESS"
    assert mallory.shown()["memory_bytes"] == mallory.session["memory_bytes"]
    answer = made.api.patch(f"/sessions/{ada.session['id']}", json={"share": "1/4"})
    assert answer.status_code == 200, answer.text
    pid, status = mallory.attempts.by_socket(20 * GIB)
    assert status == 0
    until(lambda: mallory.attempts.ended(pid), 20, "the end of the process")


def test_a_pid_namespace_within_ends_with_the_session_too(made: Machine) -> None:
    eve = Mallory(made, len(made.programs))
    eve.program(
        "pause = 'import signal; signal.pause()'\n"
        f"inside = {WITHIN!r} + 'within(PIDS); os.fork()\\n' + pause\n"
        "for before, source in (['nohup'], pause), (['setsid'], pause), ([], inside):\n"
        "    subprocess.Popen([*before, sys.executable, '-c', source],\n"
        "                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"
    )
    pids = until(lambda: found if len(found := _pids(made, eve)) >= 5 else set(), what="the processes")
    eve.program.kill()
    until(lambda: eve.shown()["state"] == "ended", 30, "the session's end")
    assert [pid for pid in pids if start_time(pid) is not None] == []
