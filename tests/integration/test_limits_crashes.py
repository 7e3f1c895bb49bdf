"""Processes that are killed at every step they take in the session's shared memory.

A stepper follows a program by single instructions and kills it right after the first change that it makes to the usage
file, then another program after the second change, and so on. It follows the library as it is shipped.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.limits import CUDA, ROOT, Cards, Outside, Process, wait_until

from gpuspawner.node.limits import abi

M = 1 << 20
OUT_OF_MEMORY = 2
C = ROOT / "tests" / "c"
OWNERS_AT, USED_AT, PENDING_AT = 4096, 12288, 143360


@dataclass(frozen=True)
class Tools:
    stepper: Path
    victim: Path


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory, made: Cards) -> Tools:
    folder = tmp_path_factory.mktemp("tools")
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "gpuspawner/node/limits/shim")]
    subprocess.run(["cc", *flags, "-o", folder / "stepper", C / "stepper.c"], check=True)
    subprocess.run(["cc", *flags, "-o", folder / "victim", C / "victim.c", made.driver().cuda], check=True)
    tried = subprocess.run(
        [folder / "stepper", "/dev/null", "1", "/bin/true"], capture_output=True, text=True, check=False
    )
    if "ended 77" in tried.stdout:
        pytest.skip("this machine forbids a program to trace its own child")
    return Tools(folder / "stepper", folder / "victim")


class Table:
    """The raw words of the usage file's first card."""

    def __init__(self, out: Outside) -> None:
        self.path = out.usage_file

    def words(self, at: int) -> list[int]:
        with self.path.open("rb") as file:
            return list(struct.unpack("=1024Q", os.pread(file.fileno(), 8192, at)))

    def owners(self) -> dict[int, int]:
        """Pids by slot."""
        return {slot: word & 0x3FFFFF for slot, word in enumerate(self.words(OWNERS_AT)) if word}

    def used(self) -> dict[int, int]:
        """Bytes by slot."""
        return {slot: word for slot, word in enumerate(self.words(USED_AT)) if word}

    def pending(self) -> list[int]:
        return [word for word in self.words(PENDING_AT) if word]


@dataclass
class Party:
    """A process that lives on through all the deaths, and what it may use with the rest of its session."""

    survivor: Process
    table: Table
    slot: int
    limit: int
    context: int

    def rest(self) -> int:
        """Bytes that are left for others."""
        return self.limit - self.table.used()[self.slot]


@pytest.fixture
def party(tools: Tools, out: Outside, uuids: list[str], context: int) -> Party:
    limit = 3 * context + 64 * M
    out.limit(abi.CardLimit(uuids[0], 1, limit, context))
    survivor = out.server(CUDA)
    assert survivor.run(f"allocate({M})")[0] == 0
    table = Table(out)
    [slot] = table.owners()
    subprocess.run([tools.victim, "join"], env=out.environment, check=True)  # from now on each makes the same steps
    return Party(survivor, table, slot, limit, context)


def step(tools: Tools, out: Outside, party: Party, phase: str, number: int) -> bool:
    """Let a program be killed after its change `number`; False if it makes fewer, and then it ended well."""
    stepper = subprocess.Popen(
        [tools.stepper, out.usage_file, str(number), tools.victim, phase, str(32 * M)],
        env=out.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert stepper.stdout is not None
        said = stepper.stdout.readline().split()
        if said[:1] != ["halted"]:
            assert said[:2] == ["ended", "0"], said
            assert int(said[2]) == number - 1
            return False
        # Halted, it may announce a wish for good: the others wait for that a moment at most, and go on.
        error, pointer = party.survivor.run(f"allocate({M})")
        assert error in (0, OUT_OF_MEMORY)
        assert error == OUT_OF_MEMORY or party.survivor.run(f"release({pointer})") == 0
        assert stepper.communicate("on\n", timeout=60)[0] == "killed\n"
        return True
    finally:
        stepper.kill()
        stepper.communicate()


def everything_comes_back(party: Party, when: str) -> None:
    """The survivor gets all that there is at its first request, in the slot that it always had."""
    error, pointer = party.survivor.run(f"allocate({party.rest()})")
    assert error == 0, when
    assert party.survivor.run("allocate(1)")[0] == OUT_OF_MEMORY
    assert party.table.owners() == {party.slot: party.survivor.process.pid}, when
    assert party.table.used() == {party.slot: party.limit}, when
    assert party.table.pending() == [], when
    assert party.survivor.run(f"release({pointer})") == 0


@pytest.mark.parametrize(("phase", "fewest"), [("join", 4), ("take", 3), ("give", 1), ("leave", 1)])
def test_a_process_may_be_killed_at_every_step_in_shared_memory(
    phase: str, fewest: int, tools: Tools, out: Outside, party: Party, made: Cards
) -> None:
    """The others go on, all that it held comes back, slots stay, the next one starts at once."""
    number = 0
    while step(tools, out, party, phase, number + 1):
        number += 1
        everything_comes_back(party, f"after a kill at step {number} of {phase}")
        subprocess.run([tools.victim, "join"], env=out.environment, check=True, timeout=20)
    assert number >= fewest  # joining: its name on a slot, what it wishes, what it has, the wish is gone


def test_a_process_may_be_killed_while_it_clears_up_after_another(
    tools: Tools, out: Outside, party: Party, made: Cards
) -> None:
    """What is half cleared is cleared by the next one."""
    number, more = 0, True
    while more:
        holder = subprocess.Popen([tools.victim, "hold", str(48 * M)], env=out.environment)
        wait_until(lambda: 48 * M + party.context in party.table.used().values(), "the holder's allocation")
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(20)
        more = step(tools, out, party, "take", number + 1)  # takes 32 MiB, for which the dead one's must go
        number += more
        everything_comes_back(party, f"after a kill at step {number}")
    assert number >= 6  # announce, put its name on the slot, empty two words of it, free it, and be granted


def test_three_hundred_processes_join_and_leave(tools: Tools, out: Outside, uuids: list[str], context: int) -> None:
    """All at once, each in a slot that stays its own while others are killed; in the end there is exactly nothing."""
    count, size = 300, 512
    out.limit(abi.CardLimit(uuids[0], 8, count * (context + size) + context, context))
    table = Table(out)
    crowd = [subprocess.Popen([tools.victim, "hold", str(size)], env=out.environment) for _ in range(count)]
    try:
        wait_until(lambda: sum(table.used().values()) == count * (context + size), "everybody's joining", 60)
        slots = {pid: slot for slot, pid in table.owners().items()}
        assert set(slots) == {process.pid for process in crowd}
        for process in crowd[::3]:
            process.kill()
            process.wait(20)
        again = [subprocess.Popen([tools.victim, "hold", str(size)], env=out.environment) for _ in range(count // 3)]
        crowd += again
        joined = {process.pid for process in again}
        wait_until(lambda: joined <= set(table.owners().values()), "the joining of those that came later", 60)
        now = {pid: slot for slot, pid in table.owners().items()}
        assert all(now[process.pid] == slots[process.pid] for process in crowd[:count] if process.returncode is None)
    finally:
        for process in crowd:
            process.kill()
            process.wait(20)
    subprocess.run([tools.victim, "join"], env=out.environment, check=True, timeout=20)  # at once, past all the dead
    server = out.server(CUDA)
    server.run(f"allocate({1 << 60})")  # refused, after a look at who is dead
    assert table.used() == dict.fromkeys(table.owners(), context)
    assert set(table.owners().values()) == {server.process.pid}
    assert server.run("cu.cuDevicePrimaryCtxRelease(0)") is not None
    assert table.used() == {}
    assert table.pending() == []
