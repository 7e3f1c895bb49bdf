"""kill -9 of any part: kernels go on, no eighth is lost or given twice, a restart finds the truth."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from support.common import until
from support.hub import Hub, Kernel
from support.stack import Stack

from gpuspawner.node.installation import short_name
from gpuspawner.node.limits import cgroups
from gpuspawner.node.limits.launch import session_pids

pytestmark = [pytest.mark.hub, pytest.mark.timeout(300)]


def goes_on(kernel: Kernel) -> bool:
    """Whether the kernel is reachable again, as the same kernel with what it knew."""
    until(kernel.answers, 60, "the kernel behind the proxy")
    return kernel("print(kept)") == "42\n"


@pytest.mark.parametrize("part", ["hub", "proxy", "service"])
def test_a_killed_part_is_restarted_and_the_kernel_does_not_notice(hub: Hub, part: str) -> None:
    with hub.user("ann") as ann:
        session = ann.start({"share": "1/4"})
        kernel = ann.kernel()
        kernel("kept = 42")
        hub.kill(part)
        assert goes_on(kernel)
        until(lambda: hub.answers("/hub/health"), 60, "the hub")
        until(lambda: hub.answers("/services/gpuspawner/api/v1/health"), 60, "the service")
        assert ann.session()["id"] == session["id"]
        assert hub.free_eighths() == 14
        assert ann.server()["ready"]
        ann.stop()
        assert hub.free_eighths() == 16


@pytest.mark.versions
@pytest.mark.case("hub-11")
def test_a_killed_server_gives_its_share_back(hub: Hub) -> None:
    with hub.user("bob") as bob:
        session = bob.start({"share": "1/2"})
        for pid in session_pids(hub.stack.state / "node" / "sessions" / session["id"]):
            with contextlib.suppress(ProcessLookupError):  # the first of them takes the others with it
                os.kill(pid, signal.SIGKILL)
        until(lambda: not bob.sessions(), 60, "the session to end")
        assert hub.free_eighths() == 16
        until(lambda: not bob.server().get("ready"), 60, "the hub to notice")
        assert bob.start({"share": "1/8"})["id"] != session["id"]
        bob.stop()


@pytest.mark.versions
def test_a_hub_killed_during_a_start_loses_nothing(hub: Hub) -> None:
    with hub.user("eli") as eli:
        assert eli.submit({"share": "1/2"}).status_code == 302
        until(eli.sessions, what="a session")
        hub.kill("hub")
        until(lambda: hub.answers("/hub/health"), 60, "the hub")
        # whether its server was found again or ended: what the hub shows and what is held agree
        until(lambda: bool(eli.server().get("ready")) == bool(eli.sessions()), 60, "hub and service to agree")
        if eli.sessions():
            eli.stop()
        assert hub.free_eighths() == 16
        eli.start({"share": "1/8"})
        assert hub.free_eighths() == 15


def test_who_takes_the_services_port_is_not_sent_its_token(hub: Hub) -> None:
    """Sessions cannot, but other programs on the machine can wait for the service to be down."""
    code = (
        "import socket, sys, time\n"
        "while True:\n"
        "    try:\n"
        f"        s = socket.create_server(('127.0.0.1', {hub.stack.port + 3}))\n"
        "        break\n"
        "    except OSError:\n"
        "        time.sleep(0.001)\n"
        "print('taken', flush=True)\n"
        "while True:\n"
        "    c, _ = s.accept()\n"
        "    sys.stdout.buffer.write(c.recv(65536) + b'|')\n"
        "    sys.stdout.buffer.flush()\n"
        "    c.close()\n"
    )
    with hub.user("vic") as vic:
        taker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        try:
            assert taker.stdout is not None
            os.kill(hub.stack.pid_of("service"), signal.SIGKILL)
            assert taker.stdout.readline() == b"taken\n"
            assert vic.ask({"share": "1/8"}).status_code == 503
        finally:
            taker.kill()
            heard, _ = taker.communicate()
        assert hub.stack.secret("service_token").encode() not in heard
        until(lambda: hub.answers("/services/gpuspawner/api/v1/health"), 60, "the service")


def test_ctrl_c_leaves_sessions_and_stop_ends_them(own_hub: Hub) -> None:
    stack = own_hub.stack
    with own_hub.user("cyd") as cyd:
        session = cyd.start({"share": "1/4"})
        kernel = cyd.kernel()
        kernel("kept = 42")
        parts = {name: stack.pid_of(name) for name in ("hub", "proxy", "service", "simulation")}
        assert "cyd: 1/4 of h100-80gb, " in stack.command("status")

        stack.down()
        assert "1 server runs on" in stack.output
        assert "stop" in stack.output
        for name in ("hub", "proxy", "service"):
            assert not runs(parts[name]), name
        assert runs(parts["simulation"])  # its memory is the session's

        stack.up()
        assert stack.pid_of("simulation") == parts["simulation"]
        assert goes_on(kernel)
        assert own_hub.sessions("cyd")[0]["id"] == session["id"]

        assert "Ended 1 server." in stack.stop()
        assert stack.process is not None
        stack.process.wait(30)
        until(lambda: "Ended.\n" in stack.output, 5, "the supervisor's last line")
        assert "runs on" not in stack.output  # it ended too
        assert not runs(parts["simulation"])
        assert not session_pids(stack.state / "node" / "sessions" / session["id"])
        below = cgroups.root()
        assert below is None or not (below / "gpuspawner" / short_name(stack.state)).exists()

    stack.up()
    assert own_hub.free_eighths() == 16
    stack.down()
    assert "No server is running" in stack.output


def test_a_killed_supervisor_is_recovered_from(own_hub: Hub) -> None:
    stack = own_hub.stack
    assert stack.process is not None
    with own_hub.user("dan") as dan:
        dan.start({"share": "1/4"})
        kernel = dan.kernel()
        kernel("kept = 42")
        parts = {name: stack.pid_of(name) for name in ("hub", "proxy", "service")}
        stack.process.kill()
        stack.process.wait()
        stack.up()
        assert not any(runs(pid) for pid in parts.values())
        assert goes_on(kernel)
        assert own_hub.free_eighths() == 14


def test_a_second_up_says_that_one_runs(hub: Hub) -> None:
    done = up_again(hub.stack)
    assert done.returncode == 1
    assert "already running" in done.stderr
    assert hub.stack.url in done.stderr
    assert hub.free_eighths() == 16


def test_a_port_in_use_is_named(hub: Hub) -> None:
    other = {"GPUSPAWNER_STATE": str(hub.stack.state.parent / "other")}
    done = up_again(hub.stack, other)
    assert done.returncode == 1
    assert f"Port {hub.stack.port}" in done.stderr


def up_again(stack: Stack, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuspawner.cli", "up"],
        env={**stack.env, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def runs(pid: int) -> bool:
    from gpuspawner.processes import start_time

    return start_time(pid) is not None
