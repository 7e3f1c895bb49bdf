"""Real sessions by the real launcher: what they see, how they end, who outlives whom."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.common import alive, gone
from support.limits import PYTHON_PLACES, Session, fake_driver, session, wait_until

from gpuspawner.node.limits import build, launch

guarded = pytest.mark.skipif(launch.probe() != "guarded", reason=f"no namespaces here: {launch.probe_reason()}")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start sessions of others")
UNPRIVILEGED = 65534


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    (folder / "secrets").mkdir(parents=True)
    (folder / "secrets" / "service_token").write_text("a secret")
    (folder / "users" / "grace").mkdir(parents=True)
    folder.chmod(0o700)
    return folder


@pytest.fixture
def ada(state: Path, driver: build.DriverFiles) -> Iterator[Session]:
    with session(state, driver) as made:
        yield made


@guarded
def test_python_runs_in_the_session_as_its_user(ada: Session) -> None:
    found = json.loads(
        ada.output(
            [
                sys.executable,
                "-c",
                "import os, pwd, json, sys, gpuspawner; print(json.dumps([os.getuid(), os.getgid(), os.getgroups(),"
                "pwd.getpwuid(os.getuid())[:], os.getcwd(), os.path.expanduser('~'), sys.prefix]))",
            ],
            env={"PYTHONPATH": str(PYTHON_PLACES[2])},
        )
    )
    uid = ada.plan.uid if ada.plan.uid is not None else os.getuid()
    home = str(ada.home)
    assert found[:2] == [uid, uid if ada.plan.uid is not None else os.getgid()]
    assert found[3][0] == "ada"
    assert found[3][5] == found[4] == found[5] == home
    assert found[6] == sys.prefix
    assert ada.launch.grade == "guarded"
    assert ada.launch.reason is None


@guarded
def test_the_state_folder_shows_the_own_home_and_nothing_else(ada: Session, state: Path) -> None:
    found = json.loads(
        ada.output(
            [
                sys.executable,
                "-c",
                "import os, json, sys; s = sys.argv[1]\n"
                "seen = sorted(os.path.join(d, n) for d, ds, fs in os.walk(s) for n in ds + fs)\n"
                "try: open(s + '/secrets/service_token').read(); read = True\n"
                "except OSError: read = False\n"
                "try: open(s + '/x', 'w'); wrote = True\n"
                "except OSError: wrote = False\n"
                "open('mine', 'w').write('x')\n"
                "print(json.dumps([seen, read, wrote]))",
                str(state),
            ]
        )
    )
    assert found == [[str(state / "users"), str(state / "users" / "ada")], False, False]
    assert (ada.home / "mine").read_text() == "x"


@guarded
def test_the_session_has_processes_temporary_files_and_places_of_its_own(ada: Session, tmp_path: Path) -> None:
    mark = Path("/dev/shm") / f"gpuspawner-test-{os.getpid()}"
    mark.write_text("the host's")
    try:
        found = json.loads(
            ada.output(
                [
                    sys.executable,
                    "-c",
                    "import os, json, sys\n"
                    "pids = sorted(int(p) for p in os.listdir('/proc') if p.isdigit())\n"
                    "r = '/run/gpuspawner/'\n"
                    "places = {d: sorted(os.listdir(r + d)) for d in os.listdir(r)}\n"
                    "def writes(p):\n"
                    "    try: open(p, 'r+b').close()\n"
                    "    except OSError: return False\n"
                    "    return True\n"
                    "def removes(p):\n"
                    "    try: os.unlink(p)\n"
                    "    except OSError: return False\n"
                    "    return True\n"
                    "open('/tmp/here', 'w').close(); open('/dev/shm/here', 'w').close()\n"
                    "print(json.dumps([os.getpid(), pids, places, os.path.exists(sys.argv[1]),\n"
                    "    writes('/run/gpuspawner/usage/usage'), removes('/run/gpuspawner/usage/usage'),\n"
                    "    writes('/run/gpuspawner/lib/libcuda.so.1'), removes('/run/gpuspawner/lib/libcuda.so.1')]))",
                    str(mark),
                ]
            )
        )
    finally:
        mark.unlink()
    pid, pids, places, sees_mark, *rights = found
    assert pids == [1, pid]
    assert places == {
        "limits": [],
        "usage": ["usage"],
        "driver": ["libcuda.so.1", "libnvidia-ml.so.1"],
        "lib": ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"],
    }
    assert not sees_mark
    assert rights == [True, False, False, False]
    assert not Path("/tmp/here").exists()
    assert not Path("/dev/shm/here").exists()


@guarded
def test_the_session_has_no_privileges_and_cannot_get_any(ada: Session) -> None:
    text = ada.output(["cat", "/proc/self/status"])
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"


@guarded
def test_secrets_of_the_environment_are_not_in_any_command_line(ada: Session) -> None:
    process = ada.popen(["sleep", "1000"], env={"JUPYTERHUB_API_TOKEN": "very-secret-value"})
    pids = wait_until(lambda: launch.session_pids(ada.folder), "the start") | {process.pid}
    for pid in pids:
        assert b"very-secret-value" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"very-secret-value" not in (ada.folder / "launch.plan").read_bytes()
    process.terminate()


@pytest.mark.case("hub-21")
@guarded
def test_an_empty_environment_still_finds_the_shim(ada: Session) -> None:
    # The test's driver has no symbols: what can be found comes from the shim, loaded with the driver at its fixed path.
    source = (
        "import ctypes\n"
        "ctypes.CDLL('libcuda.so.1').cuMemAlloc_v2; ctypes.CDLL('libnvidia-ml.so.1').nvmlDeviceGetCount\n"
        "print(sorted({l.split()[-1] for l in open('/proc/self/maps') if 'libcuda' in l or 'libnvidia' in l}))"
    )
    out = ada.output(["/usr/bin/env", "-i", sys.executable, "-c", source])
    assert "/run/gpuspawner/lib/libcuda.so.1" in out
    assert "/run/gpuspawner/driver/libcuda.so.1" in out


@guarded
def test_the_drivers_own_path_leads_to_the_shim_too(tmp_path: Path) -> None:
    place = tmp_path / "exposed"
    place.mkdir()
    tmp_path.chmod(0o755)
    place.chmod(0o755)
    made = fake_driver(place)
    with session(tmp_path / "state", made) as ada:
        ada.plan.expose.append(place)
        ada.launch = launch.prepare(ada.plan)
        out = ada.output([sys.executable, "-c", f"import ctypes; print(ctypes.CDLL({str(made.cuda)!r}).cuMemAlloc_v2)"])
    ada.plan.expose.remove(place)
    assert "cuMemAlloc_v2" not in out.split("object")[0]
    assert "_FuncPtr" in out


@pytest.mark.parametrize("code", [0, 7, 255])
def test_the_exit_status_is_passed_on(ada: Session, code: int) -> None:
    assert ada.popen(["sh", "-c", f"exit {code}"]).wait(20) == code


def test_a_server_that_a_signal_ends_gives_128_and_its_number(ada: Session) -> None:
    assert ada.popen(["sh", "-c", "kill -KILL $$"]).wait(20) == 128 + signal.SIGKILL


def test_a_command_that_does_not_exist(ada: Session) -> None:
    process = ada.popen(["/nowhere/at-all"], stderr=subprocess.PIPE)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 127
    assert "cannot run /nowhere/at-all" in error


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_signals_reach_the_server_which_may_end_in_its_own_way(ada: Session, name: str) -> None:
    source = (
        "import signal, sys, time\n"
        f"signal.signal(signal.{name}, lambda *_: (print('caught', flush=True), sys.exit(9)))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    process = ada.popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(getattr(signal, name))
    assert process.stdout.readline() == "caught\n"
    assert process.wait(20) == 9
    assert not launch.session_alive(ada.folder)


def _with_children(ada: Session) -> tuple[subprocess.Popen[str], set[int]]:
    """A server with a child that called setsid, one under nohup and an orphan; and all their host pids."""
    source = (
        "import os, subprocess, sys\n"
        "subprocess.Popen(['setsid', 'sleep', '1000'])\n"
        "subprocess.Popen(['nohup', 'sleep', '1001'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.execvp('sleep', ['sleep', '1002'])\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = ada.popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    def sleeps() -> set[int]:
        pids = launch.session_pids(ada.folder)
        names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids if alive(pid)]
        return pids if sum(b"sleep\x00100" in name for name in names) == 3 else set()

    return process, wait_until(sleeps, "the children's start")


def _host_pids_by_namespace(pid: int) -> set[int]:
    want = Path(f"/proc/{pid}/ns/pid").readlink()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "ns/pid").readlink() == want:
                    found.add(int(entry.name))
    return found


@guarded
@as_root
def test_session_pids_are_those_of_its_namespace(ada: Session) -> None:
    process, pids = _with_children(ada)
    assert process.pid not in pids
    assert len(pids) == 5  # init, the server, three sleeps
    assert pids == _host_pids_by_namespace(next(iter(pids)))
    process.terminate()


def test_children_that_went_their_own_way_end_with_the_server(ada: Session) -> None:
    process, pids = _with_children(ada)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 0
    wait_until(gone(pids), "the end of all")
    assert not launch.session_alive(ada.folder)
    assert launch.session_pids(ada.folder) == set()


def test_kill_9_of_the_launcher_ends_everything(ada: Session) -> None:
    process, pids = _with_children(ada)
    process.kill()
    process.wait(20)
    wait_until(lambda: not launch.session_alive(ada.folder), "the session's end")
    assert gone(pids)()  # the lock is held until the last one is gone


@guarded
def test_the_lock_is_held_until_the_last_process_ended(ada: Session) -> None:
    process, pids = _with_children(ada)
    assert launch.session_alive(ada.folder)
    process.kill()
    while launch.session_alive(ada.folder):
        pass
    assert not any(alive(pid) for pid in pids)


def test_a_session_does_not_start_twice_at_once_but_again(ada: Session) -> None:
    first = ada.popen(["sleep", "1000"])
    wait_until(lambda: launch.session_pids(ada.folder), "the start")
    second = ada.popen(["true"], stderr=subprocess.PIPE)
    _, error = second.communicate(timeout=20)
    assert second.returncode == 75
    assert "already runs" in error
    first.terminate()
    first.wait(20)
    assert ada.popen(["true"]).wait(20) == 0


def test_the_session_outlives_the_hub(ada: Session, tmp_path: Path) -> None:
    """A parent that is killed, as the hub may be, leaves the session alone."""
    server = (
        "import pathlib, signal\n"
        "signal.signal(signal.SIGUSR1, lambda *_: pathlib.Path('caught').touch())\n"
        "pathlib.Path('ready').touch()\n"
        "while True: signal.pause()"
    )
    command = [*ada.launch.argv_prefix, sys.executable, "-c", server]
    source = (
        "import signal, subprocess\n"
        f"print(subprocess.Popen({command!r}, cwd={str(ada.home)!r}).pid, flush=True)\n"
        "signal.pause()"
    )
    hub = subprocess.Popen(
        [sys.executable, "-c", source], env=os.environ | ada.launch.env, stdout=subprocess.PIPE, text=True
    )
    assert hub.stdout is not None
    launcher = int(hub.stdout.readline())
    wait_until((ada.home / "ready").exists, "the start")
    pids = launch.session_pids(ada.folder)
    hub.kill()
    hub.wait(20)
    hub.stdout.close()
    # Whatever the hub's death sent to the launcher lies in its queue before this, which comes through all the same.
    os.kill(launcher, signal.SIGUSR1)
    wait_until((ada.home / "caught").exists, "the server's answer")
    assert launch.session_alive(ada.folder)
    assert launch.session_pids(ada.folder) >= pids
    assert launch.end_session(ada.folder, 5)
    wait_until(gone(pids), "the end of all")


def test_end_session_asks_first(ada: Session) -> None:
    process, _ = _with_children(ada)
    assert launch.end_session(ada.folder, 20)
    assert process.wait(20) == 128 + signal.SIGTERM


def test_end_session_insists(ada: Session) -> None:
    source = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    process = ada.popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert launch.end_session(ada.folder, 0.1)
    assert process.wait(20) == 128 + signal.SIGKILL
    assert launch.end_session(ada.folder, 0.1)  # and again does no harm


def test_a_session_that_never_ran_is_notalive(ada: Session) -> None:
    assert not launch.session_alive(ada.folder)
    assert launch.session_pids(ada.folder) == set()
    assert launch.end_session(ada.folder, 1)


def test_asking_whether_it_lives_never_disturbs_a_start(ada: Session) -> None:
    for _ in range(10):
        process = ada.popen(["true"])
        while process.poll() is None:
            launch.session_alive(ada.folder)
        assert process.returncode == 0


@as_root
def test_root_as_the_sessions_user_is_not_called_guarded(tmp_path: Path, driver: build.DriverFiles) -> None:
    with session(tmp_path / "state", driver, uid=0) as made:
        assert made.launch.grade == "advisory"
        assert made.launch.reason is not None
        assert "root" in made.launch.reason


def test_what_cannot_be_started_is_refused_by_the_name_of_its_field(tmp_path: Path, driver: build.DriverFiles) -> None:
    def plan(**changes: object) -> launch.SessionPlan:
        fields = {
            "session_dir": tmp_path / "s",
            "home": tmp_path / "home",
            "uid": None,
            "gid": None,
            "user_name": "ada",
            "driver": driver,
        }
        return launch.SessionPlan(**(fields | changes))  # type: ignore[arg-type]

    for field, changes in (
        ("session_dir", {"session_dir": Path("relative")}),
        ("home", {"home": Path("relative")}),
        ("user_name", {"user_name": "a:b"}),
        ("user_name", {"user_name": ""}),
        ("session_dir", {"session_dir": tmp_path / "home" / "inside"}),
        ("driver.cuda", {"driver": build.DriverFiles(tmp_path / "none", driver.nvml)}),
    ):
        with pytest.raises(launch.LaunchError, match=rf"^{field}: given .*allowed"):
            launch.prepare(plan(**changes))


def test_names_of_the_host_stay_known(ada: Session) -> None:
    if ada.launch.grade != "guarded":
        pytest.skip("no file of users of its own without a namespace")
    out = ada.output(["cat", "/etc/passwd"])
    assert out.startswith("ada:x:")
    names = [line.split(":")[0] for line in out.splitlines()]
    others = {e.pw_name for e in pwd.getpwall() if e.pw_uid != os.getuid()} if os.geteuid() else {"root"}
    assert others <= set(names) | {"ada"}
