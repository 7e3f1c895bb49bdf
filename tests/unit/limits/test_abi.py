"""The limit and usage files, from the node's side."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuspawner.node.limits import abi
from gpuspawner.node.limits.abi import CardLimit, LimitFileError, read_limits, read_usage, write_limits

A = "GPU-00000000-0000-4000-8000-00000000000a"
B = "GPU-00000000-0000-4000-8000-00000000000b"
C = "MIG-00000000-0000-4000-8000-00000000000c"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    limits = [
        CardLimit(A, 1, 10 << 30, 64 << 20, burst=True, compute=1000, compute_from=875),
        CardLimit(C, 8, (1 << 63) - 1, frozen=True),
        CardLimit(B, 2, 0),
    ]
    assert [limit.compute for limit in limits] == [1000, 1000, 250]
    write_limits(tmp_path / "limit", limits)
    assert read_limits(tmp_path / "limit") == limits
    assert (tmp_path / "limit").stat().st_size == abi.LIMIT_SIZE


def test_a_change_keeps_the_file_so_that_those_who_mapped_it_see_it(tmp_path: Path) -> None:
    path = tmp_path / "limit"
    write_limits(path, [CardLimit(A, 1, 100)])
    inode = path.stat().st_ino
    with path.open("rb") as file:
        write_limits(path, [CardLimit(A, 2, 200)])
        assert path.stat().st_ino == inode
        generation = struct.unpack_from("=Q", file.read(), 16)[0]
    assert generation == 2
    assert read_limits(path) == [CardLimit(A, 2, 200)]


def test_cards_keep_their_position(tmp_path: Path) -> None:
    path = tmp_path / "limit"
    write_limits(path, [CardLimit(A, 8, 100), CardLimit(B, 8, 200)])
    write_limits(path, [CardLimit(C, 8, 300), CardLimit(B, 8, 400)])
    assert read_limits(path) == [CardLimit(B, 8, 400), CardLimit(C, 8, 300)]  # A's place is kept for A
    write_limits(path, [CardLimit(A, 1, 1)])
    assert read_limits(path) == [CardLimit(A, 1, 1)]


def test_a_writer_that_dies_before_the_last_store_leaves_the_old_limits(tmp_path: Path) -> None:
    path = tmp_path / "limit"
    write_limits(path, [CardLimit(A, 1, 100)])
    before = path.read_bytes()
    write_limits(path, [CardLimit(A, 2, 200)])
    after = bytearray(path.read_bytes())
    after[16:24] = before[16:24]
    path.write_bytes(after)
    assert read_limits(path) == [CardLimit(A, 1, 100)]


def test_readers_never_see_a_mixture(tmp_path: Path) -> None:
    path = tmp_path / "limit"
    write_limits(path, [CardLimit(A, 1, 1000), CardLimit(B, 1, 1000)])
    stop = threading.Event()
    seen: list[list[CardLimit]] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(read_limits(path))

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(1, 200):
        write_limits(path, [CardLimit(A, i % 9, i * 1000), CardLimit(B, i % 9, i * 1000)])
    stop.set()
    reader.join()
    assert seen
    assert all(one.memory_bytes == two.memory_bytes and one.eighths == two.eighths for one, two in seen)


@pytest.mark.parametrize("size", [0, 1, 24, 1024, abi.LIMIT_SIZE - 1, abi.LIMIT_SIZE + 1])
def test_a_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "limit"
    write_limits(path, [CardLimit(A, 1, 100)])
    os.truncate(path, size)
    with pytest.raises(LimitFileError, match="expected 4096"):
        read_limits(path)
    write_limits(path, [CardLimit(A, 2, 200)])  # the node mends it
    assert read_limits(path) == [CardLimit(A, 2, 200)]


def test_damage_is_noticed_wherever_it_matters(tmp_path: Path) -> None:
    path = tmp_path / "limit"
    limits = [CardLimit(A, 3, 12345, 678), CardLimit(B, 8, 1 << 40)]
    write_limits(path, limits)
    whole = path.read_bytes()
    random_ = random.Random(5)
    refused = 0
    for at in [*range(24), *range(2048, 2048 + 800, 7), *random_.sample(range(abi.LIMIT_SIZE), 200)]:
        content = bytearray(whole)
        content[at] ^= 1 << random_.randrange(8)
        path.write_bytes(content)
        try:
            assert read_limits(path) == limits, at
        except LimitFileError:
            refused += 1
    assert refused >= 24 + 800 // 7


@pytest.mark.parametrize(
    ("field", "limit"),
    [
        ("uuid", ("GPU-1", 1, 1)),
        ("uuid", ("00000000-0000-4000-8000-00000000000a", 1, 1)),
        ("uuid", (None, 1, 1)),
        ("eighths", (A, 9, 1)),
        ("eighths", (A, -1, 1)),
        ("eighths", (A, True, 1)),
        ("eighths", (A, 1.0, 1)),
        ("memory_bytes", (A, 1, -1)),
        ("memory_bytes", (A, 1, 1 << 63)),
        ("memory_bytes", (A, 1, "1")),
        ("context_bytes", (A, 1, 1, -1)),
        ("burst", (A, 1, 1, 0, 1)),
        ("frozen", (A, 1, 1, 0, False, None)),
        ("compute", (A, 1, 1, 0, False, False, 1001)),
        ("compute", (A, 1, 1, 0, False, False, 0.5)),
        ("compute_from", (A, 1, 1, 0, False, False, None, -1)),
    ],
)
def test_a_limit_that_is_none_is_refused_by_the_name_of_its_field(field: str, limit: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: given .*allowed"):
        CardLimit(*limit)  # type: ignore[arg-type]


def test_compute_moves_and_nothing_else_does(tmp_path: Path) -> None:
    path = tmp_path / "limit"
    write_limits(path, [CardLimit(A, 1, 100, 7, burst=True), CardLimit(B, 2, 200, frozen=True)])
    write_limits(path, [CardLimit(A, 1, 100, 7, burst=True), CardLimit(C, 8, 1)])  # B's place is kept, empty
    abi.move_compute(path, {A: (1000, 0), B: (1, 1)})
    assert read_limits(path) == [CardLimit(A, 1, 100, 7, burst=True, compute=1000), CardLimit(C, 8, 1)]
    before = path.read_bytes()
    abi.move_compute(path, {A: (1000, 0)})
    assert path.read_bytes() == before  # nothing to put in force
    with pytest.raises(ValueError, match="compute: given 1001"):
        abi.move_compute(path, {A: (1001, 0)})
    assert path.read_bytes() == before


def test_a_file_of_another_version_is_not_believed_and_those_who_have_mapped_it_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "limit"
    write_limits(path, [CardLimit(A, 1, 100)])
    content = bytearray(path.read_bytes())
    content[8] = 1
    path.write_bytes(content)
    with pytest.raises(LimitFileError, match=f"of version 1, expected {abi.VERSION}"):
        read_limits(path)
    with path.open("rb") as mapped:
        write_limits(path, [CardLimit(A, 2, 200)])
        assert struct.unpack_from("=Q", mapped.read(), 16) == (0,)  # no generation: nothing in force
    assert read_limits(path) == [CardLimit(A, 2, 200)]


def test_one_card_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 limits for 1 cards"):
        write_limits(tmp_path / "limit", [CardLimit(A, 1, 1), CardLimit(A, 1, 2)])


def test_more_than_sixteen_cards_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "limit"
    cards = [CardLimit(f"GPU-00000000-0000-4000-8000-{i:012x}", 8, i) for i in range(17)]
    write_limits(path, cards[:16])
    with pytest.raises(ValueError, match="allowed are 16"):
        write_limits(path, cards[16:])
    assert read_limits(path) == cards[:16]


def _usage(path: Path, rows: list[tuple[int, int, int]]) -> None:
    """Rows: slot, owner, bytes on the first card."""
    abi.create_usage(path)
    content = bytearray(path.read_bytes())
    content[64:80] = bytes.fromhex(A.removeprefix("GPU-").replace("-", ""))
    for slot, owner, amount in rows:
        struct.pack_into("=Q", content, 4096 + slot * 8, owner)
        struct.pack_into("=Q", content, 4096 + 8192 + slot * 8, amount)
    path.write_bytes(content)


def test_usage_is_read_by_process(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    start = 4711 << 23
    _usage(path, [(0, start | 12, 1000), (1, 0, 5), (7, start | 13, 0), (1023, start | 14, 2)])
    assert read_usage(path) == [abi.ProcessUsage(12, A, 1000), abi.ProcessUsage(14, A, 2)]


def test_an_existing_usage_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    _usage(path, [(0, 1, 1000)])
    abi.create_usage(path)
    assert len(read_usage(path)) == 1


def test_hostile_usage_gives_some_rows_or_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    abi.create_usage(path)
    random_ = random.Random(7)
    content = bytearray(random_.randbytes(abi.USAGE_SIZE))
    content[:16] = path.read_bytes()[:16]
    path.write_bytes(content)
    rows = read_usage(path)
    assert 0 < len(rows) <= abi.MAX_CARDS * abi.MAX_SLOTS
    assert all(0 <= row.bytes < 1 << 64 and 0 <= row.pid < 1 << 22 for row in rows)
    path.write_bytes(random_.randbytes(abi.USAGE_SIZE))
    with pytest.raises(LimitFileError, match="not a usage file"):
        read_usage(path)


@pytest.mark.parametrize("size", [0, 4096, abi.USAGE_SIZE - 1, abi.USAGE_SIZE + 1])
def test_usage_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "usage"
    abi.create_usage(path)
    os.truncate(path, size)
    with pytest.raises(LimitFileError, match="expected a plain file of 471040"):
        read_usage(path)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "device", "socket", "hard link", "lease"])
def test_usage_is_no_way_to_other_files(tmp_path: Path, kind: str) -> None:
    """Whatever a session puts in its place, the reader neither follows nor waits, and opens plain files only."""
    abi.create_usage(tmp_path / "real")
    path = tmp_path / "usage"
    match kind:
        case "link":
            path.symlink_to(tmp_path / "real")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            if os.geteuid() != 0:
                pytest.skip("only root can make a device")
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(5, 0))
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        case "hard link":
            path.hardlink_to(tmp_path / "real")
        case "lease":
            abi.create_usage(path)
            fd = os.open(path, os.O_RDWR)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # an open that waits would wait for this for 45 s
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            try:
                with pytest.raises(BlockingIOError):
                    read_usage(path)
            finally:
                os.close(fd)
                signal.signal(signal.SIGIO, signal.SIG_DFL)
            return
    with pytest.raises(LimitFileError, match="expected a plain file of 471040"):
        read_usage(path)


@pytest.mark.parametrize("word", [(1 << 64) - 1, 1 << 63, (1 << 22) | 5, 0])
def test_usage_may_claim_anything(tmp_path: Path, word: int) -> None:
    """Numbers that are negative elsewhere, sums that wrap, every slot taken: rows, never more than there can be."""
    path = tmp_path / "usage"
    abi.create_usage(path)
    head = path.read_bytes()[:16]
    path.write_bytes(head + struct.pack("=Q", word) * ((abi.USAGE_SIZE - 16) // 8))
    rows = read_usage(path)
    assert len(rows) in (0, abi.MAX_CARDS * abi.MAX_SLOTS)
    assert {row.bytes for row in rows} <= {word}


def test_a_sparse_usage_file_is_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    abi.create_usage(path)
    with path.open("r+b") as file:
        file.truncate(16)
        file.truncate(abi.USAGE_SIZE)
    assert read_usage(path) == []


def test_usage_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """Another process cuts it, grows it and writes into it all the while."""
    path = tmp_path / "usage"
    abi.create_usage(path)
    source = (
        "import os, random, sys\n"
        "r, size = random.Random(5), int(sys.argv[2])\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\n"
        "good = os.pread(fd, 4096, 0)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    os.ftruncate(fd, r.choice([0, 100, size // 2, size, size, size]))\n"
        "    os.pwrite(fd, good, 0); os.pwrite(fd, r.randbytes(4096), r.randrange(size - 4096))\n"
        "    os.ftruncate(fd, size)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", source, path, str(abi.USAGE_SIZE)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        refused = read = 0
        for _ in range(20000):
            try:
                read += len(read_usage(path)) <= abi.MAX_CARDS * abi.MAX_SLOTS
            except LimitFileError:
                refused += 1
            if read > 20 and refused > 20:
                break
        assert read > 20
        assert refused > 20
    finally:
        writer.kill()
        writer.communicate()
