"""The daemon: hostile and hanging clients, who may control it, its end."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from gpuspawner.simulation import SimulatedCards, SimulationError, control
from gpuspawner.simulation.build import DAEMON, build
from gpuspawner.simulation.control import control_socket

MAGIC = 0x4D495347
CONTEXT = 64 << 20
VERSION = 2
MIG_MODE = 12
DENIED = 4


def connect(cards):
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    raw.settimeout(20)
    raw.connect(str(cards.socket))
    return raw


def request(op, card=0, size=0, value=0, magic=MAGIC):
    return struct.pack("=4I2Q", magic, op, card, 0, size, value)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"x",
        bytes(100),
        os.urandom(4000),
        os.urandom(60000),
        request(4, 0, 1),  # an allocation without a greeting
        request(1, value=1, magic=1),
        request(1, value=VERSION) + b"more",
    ],
)
def test_garbage_ends_its_sender_only(one, cards, garbage):
    with connect(cards) as raw:
        raw.send(garbage)
        assert raw.recv(100) == b""
    assert one("used()") == CONTEXT
    one("alloc(10)")


def greet(raw):
    raw.send(request(1, value=VERSION))
    reply, descriptors, _, _ = socket.recv_fds(raw, 100, 1)
    assert struct.unpack("=IiQ", reply)[:2] == (MAGIC, 0)
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("op", [0, 99, 2**32 - 1])
def test_unknown_requests_are_refused(one, cards, op):
    with connect(cards) as raw:
        greet(raw)
        raw.send(request(op))
        assert struct.unpack("=IiQ", raw.recv(100))[1] == 2


def test_a_card_that_is_not_there_ends_the_sender(one, cards):
    with connect(cards) as raw:
        greet(raw)
        raw.send(request(4, 2, 512))
        assert raw.recv(100) == b""
    assert one("used()") == CONTEXT


def test_nobody_can_give_back_what_they_do_not_hold(one, cards):
    with connect(cards) as raw:
        greet(raw)
        for message in (request(5, 0, 512), request(3), request(5, 0, 2**64 - 1), request(4, 0, 2**64 - 1)):
            raw.send(message)
            assert struct.unpack("=IiQ", raw.recv(100))[1] != 0
        raw.send(request(2))
        raw.recv(100)
        raw.send(request(5, 0, 512))  # the context's own memory goes only with the context
        assert struct.unpack("=IiQ", raw.recv(100))[1] == 2
        assert cards.used_bytes() == 2 * CONTEXT
    cards.await_used(CONTEXT)


def test_a_client_that_never_reads_holds_up_nobody(one, cards):
    with connect(cards) as raw:
        greet(raw)
        raw.setblocking(False)
        sent = 0
        try:
            for _ in range(200_000):  # until its end of the line is full, or the daemon hangs up
                raw.send(request(4, 0, 512))
                sent += 1
                if sent % 1000 == 0:
                    assert one("info()[1]") == 81559 << 20
        except (BlockingIOError, ConnectionError):
            pass
        one("cu.MemFree_v2(alloc(10))")
    cards.await_used(CONTEXT)


def test_silent_clients_hold_up_nobody(one, cards):
    raws = [connect(cards) for _ in range(200)]
    one("cu.MemFree_v2(alloc(10))")
    for raw in raws:
        raw.close()


def test_the_page_cannot_be_written_by_clients(one, cards):
    import mmap

    with connect(cards) as raw:
        raw.send(request(1, value=VERSION))
        _, descriptors, _, _ = socket.recv_fds(raw, 100, 1)
        size = os.fstat(descriptors[0]).st_size
        with pytest.raises(OSError, match=r"ermission|not permitted"):
            mmap.mmap(descriptors[0], size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(OSError, match=r"nvalid|ermission|not permitted"):
            os.ftruncate(descriptors[0], 0)
        os.close(descriptors[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_other_users_may_use_the_cards_but_not_control_them(cards, tmp_path):
    code = f"""
import os, socket, struct
raw = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.setgid(65534); os.setuid(65534)
raw.connect({str(cards.socket)!r})
other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
print(other.connect_ex({str(cards.socket) + ".control"!r}))
raw.send(struct.pack("=4I2Q", {MAGIC}, 8, 0, 0, 0, 0) + b"quit")
print(raw.recv(1000)[16:].decode())
raw.send(struct.pack("=4I2Q", {MAGIC}, 1, 0, 0, 0, {VERSION}))
print(struct.unpack("=IiQ", raw.recv(1000))[1])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")
    assert said[0] == str(errno.EACCES)
    assert "control is for root" in said[1]
    assert said[2] == "0"
    assert cards.used_bytes() == 0


def test_the_two_sockets_take_no_part_in_each_others_work(cards):
    control_path = Path(f"{cards.socket}.control")
    assert stat.S_IMODE(control_path.stat().st_mode) == 0o600
    with connect(cards) as raw:  # root, or the daemon's own user
        raw.send(request(8) + b"quit")
        assert b"ends in .control" in raw.recv(1000)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
        raw.connect(str(control_path))
        raw.send(request(1, value=VERSION))
        assert raw.recv(1000) == b""
    assert cards.used_bytes() == 0


@pytest.fixture
def users_folder():
    """A folder of the user 65534's."""
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, 65534, 65534)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make namespaces")
def test_a_process_of_the_daemons_user_in_a_pid_namespace_sets_no_limits_and_commands_nothing(users_folder):
    """As a session of somebody who runs all this without root. It is even let to the control socket."""
    path = users_folder / "s"
    code = f"""
import socket, struct
raw = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
raw.connect({str(path) + ".control"!r})
raw.send(struct.pack("=4I2Q", {MAGIC}, 8, 0, 0, 0, 0) + b"lose 0")
print(struct.unpack("=IiQ", raw.recv(1000)[:16])[1])
raw = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
raw.connect({str(path)!r})
raw.send(struct.pack("=4I2Q", {MAGIC}, 1, 0, 0, 0, {VERSION}))
raw.recv(1000)
raw.send(struct.pack("=4I2Q", {MAGIC}, {MIG_MODE}, 0, 0, 0, 1))
print(struct.unpack("=IiQ", raw.recv(1000)[:16])[1])
"""
    plain = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    argv = [*plain, DAEMON, "--socket", path, "--cards", "1*a100-40gb"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as daemon:
        try:
            assert daemon.stdout.readline() == f"ready {path}\n".encode()
            said = []
            for before in (["unshare", "--pid", "--fork"], []):
                run = [*before, *plain, sys.executable, "-c", code]
                said.append(subprocess.run(run, capture_output=True, text=True, check=True).stdout.split())
        finally:
            daemon.terminate()
    assert said[0] == [str(DENIED)] * 2
    assert said[1] == ["0", said[1][1]]
    assert said[1][1] != str(DENIED)


def test_processes_race_for_the_last_place(cards, program):
    programs = [program() for _ in range(6)]
    for each in programs:
        each("context = start()")
    for each in programs:
        each.tell("[code_of('MemAlloc_v2', byref(c_uint64()), 20 * GIB) for _ in range(3)]")
    codes = [code for each in programs for code in each.answer()]
    fit = ((81559 << 20) - 6 * CONTEXT) // (20 << 30)
    assert codes.count(0) == fit
    assert set(codes) == {0, 2}
    assert cards.used_bytes() == 6 * CONTEXT + fit * (20 << 30)


def test_threads_of_one_process_share_its_account(one):
    one(
        """
import threading, random
def work(seed):
    r, mine = random.Random(seed), []
    cu.CtxSetCurrent(context)
    for _ in range(400):
        if mine and r.random() < 0.5: cu.MemFree_v2(mine.pop(r.randrange(len(mine))))
        else: mine.append(alloc(r.randrange(1, 100000)))
    for pointer in mine: cu.MemFree_v2(pointer)
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
"""
    )
    assert one("used()") == CONTEXT


def test_the_daemon_ends_once_unused(cards, program):
    one = program()
    one("context = start()")
    cards.control("quit-when-unused")
    assert one("used()") == CONTEXT
    one.close()
    cards._daemon.wait(20)
    assert not cards.socket.exists()


def test_a_second_daemon_does_not_take_over_the_socket(cards):
    with pytest.raises(SimulationError, match="another daemon"):
        SimulatedCards("1*a100-40gb", socket=cards.socket).start()
    assert control(cards.socket, "state")


def test_a_socket_left_behind_is_taken_over(tmp_path):
    path = tmp_path / "cards.sock"
    first = SimulatedCards("1*a100-40gb", socket=path).start()
    os.kill(first.pid, 9)
    first.stop()
    assert path.exists()
    assert control_socket(path).exists()
    with SimulatedCards("1*a100-40gb", socket=path) as second:
        assert second.used_bytes() == 0
    assert not path.exists()
    assert not control_socket(path).exists()


@pytest.mark.parametrize(
    "spec", ["", "h100", "0*h100-80gb", "17*h100-80gb", "-1*h100-80gb", "x*h100-80gb", "2*", "9*h100-80gb,9*h100-80gb"]
)
def test_bad_specifications_are_told_what_is_allowed(spec):
    with pytest.raises(SimulationError, match=r"cards: got .*allowed"):
        SimulatedCards(spec).start()


def test_the_pidfile_and_the_ready_line(tmp_path):
    build()
    path, pidfile = tmp_path / "s", tmp_path / "pid"
    argv = [DAEMON, "--socket", path, "--cards", "1*a100-40gb", "--pidfile", pidfile]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout.readline() == f"ready {path}\n".encode()
        assert int(pidfile.read_text()) == daemon.pid
        daemon.terminate()
        assert daemon.wait(20) == 0
    assert not pidfile.exists()
    assert not path.exists()


def test_calls_after_the_daemon_has_gone_fail_and_do_not_hang(program):
    running = SimulatedCards("1*a100-40gb").start()
    one = program(running)
    one("context = start()\npointer = alloc(10)")
    os.kill(running.pid, 9)
    answered = threading.Event()

    def ask():
        assert one("code_of('MemAlloc_v2', byref(c_uint64()), 10)") == 100
        answered.set()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(20)
    running.stop()
    assert answered.is_set()
