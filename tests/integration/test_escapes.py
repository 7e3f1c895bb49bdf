"""Ways past the limit of memory, tried from inside a session. What came of each stands in the security page's table."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.common import until
from support.escapes import GIB, Mallory
from support.machine import CUDA, Machine, machine

from gpuspawner.node.gate import gib
from gpuspawner.node.limits import abi, launch
from gpuspawner.simulation import BIN

GRACE = 1

guarded = pytest.mark.skipif(launch.probe() != "guarded", reason="this machine allows no namespaces")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="sessions have user ids of their own only under root")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    settings = {"GPUSPAWNER_EXCESS_SECONDS": str(GRACE), "GPUSPAWNER_ENFORCERS": "shim"}
    with machine(tmp_path_factory.mktemp("escapes"), env=settings) as found:
        yield found


@pytest.fixture
def mallory(made: Machine) -> Iterator[Mallory]:
    found = Mallory(made, len(made.programs))
    yield found
    found.program.kill()
    until(lambda: found.shown()["state"] == "ended", 30, "the session's end")


@guarded
@pytest.mark.parametrize(
    "env",
    [
        "{}",
        "dict(os.environ, LD_LIBRARY_PATH='/nowhere', LD_PRELOAD='', GPUSPAWNER_LIMITS='/dev/null')",
        "dict(os.environ, CUDA_VISIBLE_DEVICES='0,1', GPUSPAWNER_USAGE=os.environ['HOME'] + '/usage')",
        "{k: v for k, v in os.environ.items() if k not in ('LD_LIBRARY_PATH', 'LD_PRELOAD')}",
    ],
    ids=["empty", "edited", "own usage file", "unset"],
)
def test_an_edited_environment_is_held(mallory: Mallory, env: str) -> None:
    if env == "{}":
        env = "{'GPUSPAWNER_SIM_SOCKET': os.environ['GPUSPAWNER_SIM_SOCKET']}"
    _, status = mallory.attempts.by_library("libcuda.so.1", 11 * GIB, env=env)
    mallory.is_held(status)


@guarded
def test_the_drivers_own_path_is_held(mallory: Mallory) -> None:
    _, status = mallory.attempts.by_library(str(BIN / "libcuda.so.1"), 11 * GIB)
    mallory.is_held(status)


@guarded
def test_the_driver_at_its_fixed_place_is_seen_and_ended(mallory: Mallory) -> None:
    pid, status = mallory.attempts.by_library("/run/gpuspawner/driver/libcuda.so.1", 20 * GIB)
    assert status == 0
    mallory.is_ended(pid)


@guarded
def test_a_copy_of_the_driver_is_seen_and_ended(mallory: Mallory) -> None:
    mallory.program(
        "import shutil; shutil.copy('/run/gpuspawner/driver/libcuda.so.1', os.environ['HOME'] + '/mine.so')"
    )
    pid, status = mallory.attempts.by_library(mallory.program("os.environ['HOME'] + '/mine.so'"), 20 * GIB)
    assert status == 0
    mallory.is_ended(pid)


@guarded
def test_a_limit_file_of_ones_own_in_a_namespace_within_is_seen_and_ended(mallory: Mallory) -> None:
    if mallory.program("subprocess.run(['unshare', '-Urm', 'true']).returncode"):
        pytest.skip("this machine lets sessions make no namespaces")
    own = Path(mallory.program("os.environ['HOME']")) / "limits"
    mallory.program(f"os.mkdir({str(own)!r})")
    limits = abi.read_limits(mallory.machine.state / "node" / "sessions" / mallory.session["id"] / "limit" / "limit")
    abi.write_limits(own / "limit", [replace(limit, eighths=8, memory_bytes=80 * GIB) for limit in limits])
    over = f'mount --bind {own} /run/gpuspawner/limits && exec "$0" "$@"'
    before = ["unshare", "-Urm", "sh", "-c", over]
    pid, status = mallory.attempts.by_library("libcuda.so.1", 20 * GIB, before=repr(before))
    assert status == 0
    mallory.is_ended(pid)
    assert mallory.program("info()[1]") == mallory.allowed


@guarded
def test_a_static_program_is_seen_and_ended(mallory: Mallory) -> None:
    pid, status = mallory.attempts.by_socket(20 * GIB)
    assert status == 0
    mallory.is_ended(pid)


@guarded
def test_a_card_that_the_session_does_not_hold_is_seen_and_the_process_ended(mallory: Mallory) -> None:
    mallory.is_ended_on_a_card_that_it_does_not_hold()


@guarded
def test_a_connection_that_is_handed_on_keeps_nothing(mallory: Mallory) -> None:
    mallory.keeps_nothing_by_handing_it_on()


@guarded
def test_many_small_ones_are_seen_together(mallory: Mallory) -> None:
    mallory.is_ended_though_each_is_small()


@guarded
def test_a_session_neither_finds_nor_may_use_the_simulated_cards_control_socket(mallory: Mallory) -> None:
    mallory.program("import socket, struct")
    mallory.program(
        "def command(path):\n"
        "    raw = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "    try: raw.connect(path)\n"
        "    except OSError as error: return type(error).__name__\n"
        "    raw.send(struct.pack('=4I2Q', 0x4D495347, 8, 0, 0, 0, 0) + b'lose 0')\n"
        "    return raw.recv(1000)[16:].decode()"
    )
    inside = mallory.program("os.environ['GPUSPAWNER_SIM_SOCKET']")
    assert "control is for root" in mallory.program(f"command({inside!r})")
    for path in (inside, str(mallory.machine.cards.socket)):
        said = mallory.program(f"command({path + '.control'!r})")
        assert said in ("FileNotFoundError", "PermissionError", "ConnectionRefusedError"), said
    assert mallory.program("allocate(1 << 20)") == "CUDA_SUCCESS"


@guarded
@as_root
def test_where_the_driver_holds_the_limit_itself_the_same_ways_are_held(tmp_path: Path) -> None:
    with machine(tmp_path, env={"GPUSPAWNER_ENFORCERS": "auto"}) as kernel:
        mallory = Mallory(kernel, 0)
        if mallory.session["grade"] != "kernel":
            pytest.skip("no memory limits by cgroup on this machine")
        mallory.program("import shutil; copy = os.environ['HOME'] + '/mine.so'")
        mallory.program("shutil.copy('/run/gpuspawner/driver/libcuda.so.1', copy)")
        for library in ("/run/gpuspawner/driver/libcuda.so.1", mallory.program("copy")):
            _, status = mallory.attempts.by_library(library, 20 * GIB)
            mallory.is_held(status)
        _, status = mallory.attempts.by_socket(20 * GIB)
        assert status != 0
        assert mallory.shown()["memory_used_bytes"] <= mallory.allowed


@guarded
def test_the_one_that_is_ended_is_the_one_that_took_it(mallory: Mallory) -> None:
    """The honest program holds more, and says so; the other holds less, and does not."""
    assert mallory.program(f"allocate({9 * GIB})") == "CUDA_SUCCESS"
    pid, status = mallory.attempts.by_socket(4 * GIB)
    assert status == 0
    mallory.is_ended(pid)
    assert mallory.program("info()[1]") == mallory.allowed


@guarded
def test_while_it_lasts_the_user_is_told_and_nothing_new_is_allocated(made: Machine, tmp_path: Path) -> None:
    with machine(tmp_path, env={"GPUSPAWNER_EXCESS_POLICY": "freeze", "GPUSPAWNER_ENFORCERS": "shim"}) as other:
        mallory = Mallory(other, 0)
        pid, _ = mallory.attempts.by_socket(20 * GIB)
        until(lambda: "frozen" in mallory.codes(), what="the notices")
        over, frozen = mallory.shown()["notices"]
        assert (over["code"], over["deadline"], frozen["code"]) == ("over_limit", None, "frozen")
        assert "20.13 GiB" in over["message"]
        assert gib(mallory.allowed) in over["message"]
        assert mallory.program("allocate(1 << 20)") == "CUDA_ERROR_OUT_OF_MEMORY"
        assert not mallory.attempts.ended(pid)
        mallory.program(f"started[{pid}].kill()")
        until(lambda: mallory.codes() == [], what="the end of the notices")
        assert mallory.program("allocate(1 << 20)") == "CUDA_SUCCESS"


@guarded
def test_a_second_time_there_is_no_grace(mallory: Mallory) -> None:
    for _ in range(2):
        pid, status = mallory.attempts.by_socket(20 * GIB)
        assert status == 0
        mallory.is_ended(pid)
    assert len([reason for reason in mallory.excesses() if "was ended" in reason]) == 2


@guarded
def test_coming_back_within_the_limit_for_a_moment_gains_no_new_grace(mallory: Mallory) -> None:
    """A program that is over the limit for less than the grace each time, again and again."""
    mallory.is_ended(mallory.attempts.by_turns("/run/gpuspawner/driver/libcuda.so.1", GRACE))


@guarded
def test_who_does_it_again_and_again_loses_the_session(mallory: Mallory) -> None:
    mallory.program(
        "argv = ["
        + repr(mallory.attempts.tools["static"])
        + f", os.environ['GPUSPAWNER_SIM_SOCKET'], '0', '{20 * GIB}']\n"
        "import threading\n"
        "def again():\n"
        "    while True: subprocess.run(argv, stdout=subprocess.DEVNULL)\n"
        "threading.Thread(target=again, daemon=True).start()"
    )
    until(lambda: mallory.shown()["state"] in ("ending", "ended"), 60, "the session's end")
    assert "processes of its user were ended within the hour" in mallory.shown()["end_reason"]


def test_a_process_of_no_session_is_reported_and_left_alone(made: Machine) -> None:
    code = CUDA + f"print(allocate({3 * GIB}), flush=True)\nimport time; time.sleep(1000)"
    stranger = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | made.cards.env(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "CUDA_SUCCESS\n"
        rows = made.api.get("/processes").json()["processes"]
        (row,) = [row for row in rows if row["pid"] == stranger.pid]
        assert row["session"] is None
        assert row["memory_used_bytes"] > 3 * GIB
        log = until(lambda: _line(made, f"process {stranger.pid} "), what="a line in the log")
        assert "of no session" in log
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def _line(made: Machine, text: str) -> str:
    lines = (made.state / "service.log").read_text().splitlines()
    return next((line for line in lines if text in line), "")
