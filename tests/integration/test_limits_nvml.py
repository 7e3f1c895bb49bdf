"""What tools in a session see of their card: the share, the session's own processes, and no other card."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.limits import CUDA, Cards, Session, cards, outside, session

from gpuspawner.node.limits import abi, launch

pytestmark = pytest.mark.skipif(launch.probe() != "guarded", reason=f"no namespaces here: {launch.probe_reason()}")
G = 1 << 30
NVML = """
import pynvml as n
n.nvmlInit()
def code(call, *arguments):
    try: call(*arguments)
    except n.NVMLError as error: return error.value
    return 0
def card(i=0): return n.nvmlDeviceGetHandleByIndex(i)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cards]:
    with cards(tmp_path_factory.mktemp("cards"), "3*h100-80gb") as found:
        yield found


@pytest.fixture
def ada(tmp_path: Path, made: Cards) -> Iterator[Session]:
    with session(tmp_path, made.driver()) as found:
        found.limit(abi.CardLimit(made.uuids()[1], 2, 20 * G))
        yield found


def test_the_share_is_the_card_and_the_sessions_use_is_what_is_used(ada: Session, made: Cards, tmp_path: Path) -> None:
    with outside(tmp_path / "other", made) as other:  # another user of the same card
        other.limit(abi.CardLimit(made.uuids()[1], 2, 20 * G))
        bob = other.server(CUDA, CUDA_VISIBLE_DEVICES="1")
        assert bob.run(f"allocate({7 * G})")[0] == 0
        server = ada.server("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '1'\n" + NVML + CUDA)
        assert server.run(f"allocate({3 * G})")[0] == 0
        for version in ("", ", n.nvmlMemory_v2"):
            server.run(f"m = n.nvmlDeviceGetMemoryInfo(card(){version})")
            assert server.run("[m.total, m.used, m.free]") == [20 * G, 3 * G, 17 * G]
        assert made.used(1) > 10 * G
        rows = server.run("[[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(card())]")
        assert rows == [[server.run("os.getpid()"), 3 * G]]
        assert server.run("n.nvmlDeviceGetGraphicsRunningProcesses(card())") == []
        ada.limit(abi.CardLimit(made.uuids()[1], 1, 2 * G))
        server.run("m = n.nvmlDeviceGetMemoryInfo(card())")
        assert server.run("[m.total, m.used, m.free]") == [2 * G, 3 * G, 0]


def test_other_cards_do_not_exist(ada: Session, made: Cards) -> None:
    own = made.uuids()[1]
    server = ada.server(NVML)
    assert server.run("n.nvmlDeviceGetCount()") == 1
    assert server.run("n.nvmlDeviceGetUUID(card())") == own
    assert server.run("n.nvmlDeviceGetIndex(card())") == 0
    assert server.run("code(card, 1)") == 2  # invalid argument
    for uuid in made.uuids():
        expected = 0 if uuid == own else 6  # not found
        assert server.run(f"code(n.nvmlDeviceGetHandleByUUID, {uuid!r})") == expected
    bus_ids = made.observer.run("[n.nvmlDeviceGetPciInfo(card(i)).busId for i in range(3)]")
    assert [server.run(f"code(n.nvmlDeviceGetHandleByPciBusId, {bus!r})") for bus in bus_ids] == [6, 0, 6]


def test_cards_come_and_go_with_the_limit_file(ada: Session, made: Cards) -> None:
    uuids = made.uuids()
    server = ada.server(NVML)
    seen = "[n.nvmlDeviceGetUUID(card(i)) for i in range(n.nvmlDeviceGetCount())]"
    ada.limit(*(abi.CardLimit(uuid, 8, 80 * G) for uuid in (uuids[2], uuids[0])))
    assert server.run(seen) == [uuids[0], uuids[2]]
    ada.limit()
    assert server.run(seen) == []


def test_without_a_limit_file_there_is_no_card(ada: Session) -> None:
    launch.limit_path(ada.folder).unlink()
    server = ada.server(NVML)
    assert server.run("n.nvmlDeviceGetCount()") == 0
    [line] = server.errors().splitlines()
    assert line.startswith("gpuspawner: no card may be used: limit file /run/gpuspawner/limits/limit: No such file")


def test_everything_else_is_the_drivers_own(ada: Session, made: Cards) -> None:
    server = ada.server(NVML)
    for call in (
        "n.nvmlDeviceGetName(card({}))",
        "n.nvmlDeviceGetTemperature(card({}), 0)",
        "n.nvmlSystemGetDriverVersion()",
    ):
        assert server.run(call.format(0)) == made.observer.run(call.format(1))


def test_gpustat_shows_the_share(ada: Session) -> None:
    source = (
        "import gpustat, json; q = gpustat.new_query()\nprint(json.dumps([[g.memory_used, g.memory_total] for g in q]))"
    )
    assert ada.output([sys.executable, "-c", source], env={"HOME": str(ada.home)}) == "[[0, 20480]]\n"


def test_another_sessions_processes_cannot_be_signalled(ada: Session) -> None:
    server = ada.server("import os, signal")
    found = server.run("[p for p in range(2, 200) if p != os.getpid() and os.path.exists(f'/proc/{p}')]")
    assert found == []
