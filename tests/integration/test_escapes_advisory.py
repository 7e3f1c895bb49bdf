"""The ways past the limit of memory where nothing holds a session but the shim: got, seen by the node, and acted on.

What came of each stands in the security page's table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.common import until
from support.escapes import ADVISORY, GIB, TAKE, WITHIN, Mallory
from support.machine import Machine, machine

from gpuspawner.node.limits import abi, launch
from gpuspawner.simulation import BIN

GRACE = 1
DRIVER = str(BIN / "libcuda.so.1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    settings = {"GPUSPAWNER_EXCESS_SECONDS": str(GRACE), "GPUSPAWNER_ENFORCERS": "shim"}
    with machine(tmp_path_factory.mktemp("advisory"), prefix=ADVISORY, env=settings) as found:
        yield found


@pytest.fixture
def mallory(made: Machine) -> Iterator[Mallory]:
    found = Mallory(made, len(made.programs))
    assert found.session["grade"] == "advisory"
    yield found
    found.program.kill()
    until(lambda: found.shown()["state"] == "ended", 30, "the session's end")


def test_a_program_that_plays_by_the_rules_is_held(mallory: Mallory) -> None:
    _, status = mallory.attempts.by_library("libcuda.so.1", 11 * GIB)
    mallory.is_held(status)


@pytest.mark.parametrize(
    "env",
    [
        "{'GPUSPAWNER_SIM_SOCKET': os.environ['GPUSPAWNER_SIM_SOCKET']}",
        "{k: v for k, v in os.environ.items() if k not in ('LD_LIBRARY_PATH', 'GPUSPAWNER_LIMITS')}",
    ],
    ids=["empty", "unset"],
)
def test_the_drivers_own_path_under_an_emptied_environment_is_seen_and_ended(mallory: Mallory, env: str) -> None:
    pid, status = mallory.attempts.by_library(DRIVER, 20 * GIB, env=env)
    assert status == 0
    mallory.is_ended(pid)


def test_a_library_path_that_finds_the_driver_first_is_seen_and_ended(mallory: Mallory) -> None:
    env = f"dict(os.environ, LD_LIBRARY_PATH={str(BIN)!r})"
    pid, status = mallory.attempts.by_library("libcuda.so.1", 20 * GIB, env=env)
    assert status == 0
    mallory.is_ended(pid)


def test_a_copy_of_the_driver_is_seen_and_ended(mallory: Mallory) -> None:
    copy = mallory.program("os.environ['HOME'] + '/mine.so'")
    mallory.program(f"import shutil; shutil.copy({DRIVER!r}, {copy!r})")
    pid, status = mallory.attempts.by_library(copy, 20 * GIB)
    assert status == 0
    mallory.is_ended(pid)


def test_limit_and_usage_files_of_ones_own_are_seen_and_ended(mallory: Mallory) -> None:
    folder = mallory.machine.state / "node" / "sessions" / mallory.session["id"]
    home = Path(mallory.program("os.environ['HOME']"))
    limits = abi.read_limits(launch.limit_path(folder))
    abi.write_limits(home / "limit", [replace(limit, eighths=8, memory_bytes=80 * GIB) for limit in limits])
    abi.create_usage(home / "usage")
    env = f"dict(os.environ, GPUSPAWNER_LIMITS={str(home / 'limit')!r}, GPUSPAWNER_USAGE={str(home / 'usage')!r})"
    pid, status = mallory.attempts.by_library("libcuda.so.1", 20 * GIB, env=env)
    assert status == 0
    mallory.is_ended(pid)


def test_a_limit_file_of_ones_own_over_the_nodes_is_seen_and_ended(mallory: Mallory) -> None:
    """In a mount namespace within, where the machine has them and only gpuspawner cannot use them."""
    path = launch.limit_path(mallory.machine.state / "node" / "sessions" / mallory.session["id"])
    home = Path(mallory.program("os.environ['HOME']"))
    limits = abi.read_limits(path)
    abi.write_limits(home / "limit", [replace(limit, eighths=8, memory_bytes=80 * GIB) for limit in limits])
    script = f"{WITHIN}within(MOUNTS)\nlay({str(home / 'limit')!r}, {str(path)!r})\n" + TAKE
    argv = ["-c", script, "libcuda.so.1", str(20 * GIB)]
    pid, status = mallory.program(f"take([sys.executable, *{argv!r}])")
    assert status == 0
    mallory.is_ended(pid)


def test_the_nodes_own_limit_file_rewritten_is_seen_and_ended(mallory: Mallory) -> None:
    """It belongs to the session's own user here."""
    path = launch.limit_path(mallory.machine.state / "node" / "sessions" / mallory.session["id"])
    mallory.program(
        "import pathlib; from dataclasses import replace; from gpuspawner.node.limits import abi\n"
        f"path = pathlib.Path({str(path)!r})\n"
        f"abi.write_limits(path, [replace(limit, memory_bytes={80 * GIB}) for limit in abi.read_limits(path)])"
    )
    pid, status = mallory.attempts.by_library("libcuda.so.1", 20 * GIB)
    assert status == 0
    mallory.is_ended(pid)
    assert mallory.program("info()[1]") == mallory.allowed


def test_a_static_program_is_seen_and_ended(mallory: Mallory) -> None:
    pid, status = mallory.attempts.by_socket(20 * GIB)
    assert status == 0
    mallory.is_ended(pid)


def test_one_that_leaves_its_parents_is_seen_and_ended(mallory: Mallory) -> None:
    """Its parent ends and it is a process session of its own; it is the session's all the same."""
    static = mallory.attempts.tools["static"]
    mallory.program(
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork():\n"
        "        os._exit(0)\n"
        "    os.write(write, str(os.getpid()).encode())\n"
        "    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)\n"
        f"    os.execv({static!r}, [{static!r}, os.environ['GPUSPAWNER_SIM_SOCKET'], '0', '{20 * GIB}'])\n"
        "os.wait()"
    )
    pid = mallory.program("int(os.read(read, 100))")
    until(lambda: not Path(f"/proc/{pid}").exists(), 20, "the end of the process")
    until(lambda: mallory.codes() == ["process_ended"], 20, "the notices")


def test_a_card_that_the_session_does_not_hold_is_seen_and_the_process_ended(mallory: Mallory) -> None:
    mallory.is_ended_on_a_card_that_it_does_not_hold()


def test_a_connection_that_is_handed_on_keeps_nothing(mallory: Mallory) -> None:
    mallory.keeps_nothing_by_handing_it_on()


def test_many_small_ones_are_seen_together(mallory: Mallory) -> None:
    mallory.is_ended_though_each_is_small()


def test_coming_back_within_the_limit_for_a_moment_gains_no_new_grace(mallory: Mallory) -> None:
    mallory.is_ended(mallory.attempts.by_turns(DRIVER, GRACE))


def test_who_does_it_again_and_again_loses_the_session(mallory: Mallory) -> None:
    socket = mallory.program("os.environ['GPUSPAWNER_SIM_SOCKET']")
    argv = [mallory.attempts.tools["static"], socket, "0", str(20 * GIB)]
    mallory.program(
        "import threading\n"
        "def again():\n"
        f"    while True: subprocess.run({argv!r}, stdout=subprocess.DEVNULL)\n"
        "threading.Thread(target=again, daemon=True).start()"
    )
    until(lambda: mallory.shown()["state"] in ("ending", "ended"), 60, "the session's end")
    assert "processes of its user were ended within the hour" in mallory.shown()["end_reason"]
