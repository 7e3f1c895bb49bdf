"""A session cannot take a port of gpuspawner, not even while its owner is down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.common import until
from support.hub import Hub
from support.stack import stack

from gpuspawner.spawner import ports

pytestmark = [
    pytest.mark.hub,
    pytest.mark.skipif(not ports.supported(), reason="this kernel cannot close ports (Linux 6.7 can)"),
]

# Every way to a listening TCP socket: plain, shared, IPv6 for both, by Multipath TCP, by SMC, by io_uring; in a child
# of its own session too.
_TRY = """
import ctypes, errno, json, os, socket, subprocess, sys
MPTCP, SMC, REUSE = 262, 43, socket.SO_REUSEPORT
def attempt(port, family=socket.AF_INET, protocol=0, reuse=False, host="127.0.0.1"):
    try:
        with socket.socket(family, socket.SOCK_STREAM, protocol) as s:
            if reuse:
                s.setsockopt(socket.SOL_SOCKET, REUSE, 1)
            s.bind((host, port))
            s.listen()
            return "taken"
    except OSError as error:
        return errno.errorcode[error.errno]
def attempts(port):
    return [attempt(port), attempt(port, reuse=True), attempt(port, host="0.0.0.0"),
            attempt(port, socket.AF_INET6, host="::"), attempt(port, protocol=MPTCP), attempt(port, SMC)]
def uring():
    libc = ctypes.CDLL(None, use_errno=True)
    return errno.errorcode[ctypes.get_errno()] if libc.syscall(425, 1, ctypes.create_string_buffer(120)) < 0 else "made"
"""


def test_no_way_leads_to_a_port_while_its_owner_is_down(hub: Hub) -> None:
    with hub.user("mal") as mal:
        mal.start({"share": "1/8"})
        kernel = mal.kernel()
        kernel(_TRY)
        # A loop in the session that takes what it can at the first moment.
        kernel(
            "import threading\n"
            "found = {}\n"
            "def hunt():\n"
            "    while True:\n"
            f"        for port in range({hub.stack.port}, {hub.stack.port + 4}):\n"
            "            for outcome in attempts(port):\n"
            "                found.setdefault(port, set()).add(outcome)\n"
            "threading.Thread(target=hunt, daemon=True).start()"
        )
        for part in ("service", "hub", "proxy"):
            hub.kill(part)
        until(lambda: hub.answers("/services/gpuspawner/api/v1/health"), 60, "the service")
        until(lambda: hub.answers("/hub/health"), 60, "the hub")
        until(kernel.answers, 60, "the route to the server")
        found = json.loads(kernel("print(json.dumps({port: sorted(each) for port, each in found.items()}))"))
        assert sorted(map(int, found)) == [hub.stack.port + i for i in range(4)]
        refusals = {"EACCES", "EPROTONOSUPPORT", "EAFNOSUPPORT"}
        assert {port: set(each) - refusals for port, each in found.items()} == {port: set() for port in found}
        assert json.loads(kernel("print(json.dumps(uring()))")) == "ENOSYS"
        # Any other port is the session's to take.
        assert kernel("print(attempt(0), attempt(0, reuse=True))") == "taken taken\n"


def test_ports_stay_closed_while_nothing_of_gpuspawner_runs(own_hub: Hub) -> None:
    mal = own_hub.user("mal")
    mal.start({"share": "1/8"})
    kernel = mal.kernel()
    kernel(_TRY)
    kernel(
        "import threading, time\n"
        "def later():\n"
        f"    for port in range({own_hub.stack.port}, {own_hub.stack.port + 4}):\n"
        "        while socket.socket().connect_ex(('127.0.0.1', port)) == 0:\n"
        "            time.sleep(0.05)\n"
        f"    found = [attempt(port) for port in range({own_hub.stack.port}, {own_hub.stack.port + 4})]\n"
        "    with open('found.new', 'w') as file:\n"
        "        json.dump(found, file)\n"
        "    os.rename('found.new', 'found.json')\n"
        "threading.Thread(target=later, daemon=True).start()"
    )
    own_hub.stack.down()
    home = own_hub.stack.state / "users" / "mal"
    (found,) = until(lambda: list(home.rglob("found.json")), 60, "the session's attempts")
    assert json.loads(found.read_text()) == ["EACCES"] * 4


# For the service alone: what it starts finds the machine as it is.
_ADVISORY = """
import sys
if "gpuspawner.service" in sys.orig_argv:
    from gpuspawner.node.limits import launch
    launch._probe = lambda: ("advisory", "for a test")
"""


def test_where_no_namespace_parts_them_the_ports_are_closed_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_ADVISORY)
    with stack(tmp_path / "state", env={"PYTHONPATH": str(tmp_path)}) as made:
        hub = Hub(made)
        with hub.user("mal") as mal:
            mal.start({"share": "1/8"})
            assert mal.session()["grade"] == "advisory"
            kernel = mal.kernel()
            kernel(_TRY)
            refusals = {"EACCES", "EPROTONOSUPPORT", "EAFNOSUPPORT"}
            for port in range(made.port, made.port + 4):
                found = set(json.loads(kernel(f"print(json.dumps(attempts({port})))")))
                assert "EACCES" in found
                assert found <= refusals
            assert json.loads(kernel("print(json.dumps(uring()))")) == "ENOSYS"
            assert kernel("print(attempt(0))") == "taken\n"
