"""Several processes under one limit: those that race, that fork, that replace themselves, that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench import shim
from support.limits import CUDA, Cards, Outside, wait_until

from gpuspawner.node.limits import abi

G, M = 1 << 30, 1 << 20
OUT_OF_MEMORY = 2


def test_a_forked_child_has_an_account_of_its_own(out: Outside, uuids: list[str], made: Cards, context: int) -> None:
    out.limit(abi.CardLimit(uuids[0], 1, 4 * G, context))
    parent = out.server(f"{CUDA}\nallocate({G})")
    parent.run(
        "import os\n"
        "r, w = os.pipe(); go, done = os.pipe()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        f"        exec({CUDA!r}, globals())\n"
        f"        answer = [allocate({2 * G})[0], allocate({2 * G})[0], info()[0]]\n"
        "    except BaseException as error: answer = repr(error)\n"
        "    os.write(w, repr(answer).encode())\n"
        "    os.read(go, 1); os._exit(0)\n"
    )
    assert parent.run("os.read(r, 1000).decode()") == repr([0, OUT_OF_MEMORY, G - 2 * context])
    assert sorted(row.bytes for row in out.usage()) == [context + G, context + 2 * G]
    assert parent.run("info()")[0] == G - 2 * context
    assert made.used() == 2 * context + 3 * G
    parent.run("os.write(done, b'x'); os.waitpid(pid, 0)")
    assert parent.run(f"allocate({2 * G})")[0] == 0  # the child's are given back when they are needed
    assert parent.run("info()")[0] == G - context


def test_a_program_that_replaces_itself_starts_from_nothing(out: Outside, uuids: list[str], context: int) -> None:
    out.limit(abi.CardLimit(uuids[0], 1, 4 * G, context))
    source = f"{CUDA}\nallocate({3 * G})\nimport os, sys\nos.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    then = f"{CUDA}\nprint(allocate({3 * G})[0], info())"
    done = subprocess.run(
        [sys.executable, "-c", source, then], env=out.environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"0 [{G - context}, {4 * G}]\n"


def test_what_a_killed_process_held_is_given_to_the_others(
    out: Outside, uuids: list[str], made: Cards, context: int
) -> None:
    out.limit(abi.CardLimit(uuids[0], 1, 4 * G, context))
    first, second = out.server(CUDA), out.server(CUDA)
    assert first.run(f"allocate({3 * G})")[0] == 0
    assert second.run(f"allocate({2 * G})")[0] == OUT_OF_MEMORY
    first.process.kill()
    os.waitid(os.P_PID, first.process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie, which nobody waits for
    wait_until(lambda: made.used() == context, "the driver's taking it back")
    assert second.run(f"allocate({3 * G})")[0] == 0
    assert made.used() == context + 3 * G


RACE = """
import mmap, os, random, time
shared = mmap.mmap(os.open(os.environ["RACE"], os.O_RDWR), 4096)
def meet(number, me, parties):
    "Waits until all have come here for the time `number`."
    shared[me * 8:me * 8 + 8] = number.to_bytes(8, "little")
    while any(int.from_bytes(shared[i * 8:i * 8 + 8], "little") < number for i in range(parties)):
        pass
"""


def test_of_two_that_race_for_the_last_place_exactly_one_gets_it(
    out: Outside, tmp_path: Path, uuids: list[str], context: int
) -> None:
    (tmp_path / "race").write_bytes(bytes(4096))
    out.limit(abi.CardLimit(uuids[0], 1, 2 * context + G + 512, context))
    racers = [out.server(CUDA + RACE, RACE=str(tmp_path / "race")) for _ in range(2)]
    for me, racer in enumerate(racers):
        racer.run(
            "def race(rounds):\n"
            "    won = []\n"
            "    for number in range(rounds):\n"
            f"        meet(2 * number + 1, {me}, 2)\n"
            f"        error, pointer = allocate({G})\n"
            f"        meet(2 * number + 2, {me}, 2)\n"
            "        won.append(error == 0)\n"
            "        if error == 0: release(pointer)\n"
            "    return won"
        )
        racer.run("pass")
    for racer in racers:
        racer.start("race(300)")
    first, second = (racer.answer() for racer in racers)
    assert [a + b for a, b in zip(first, second, strict=True)] == [1] * 300


def test_processes_that_race_never_pass_the_limit_and_end_at_nothing(
    out: Outside, tmp_path: Path, uuids: list[str], made: Cards, context: int
) -> None:
    limit = 4 * context + 64 * M
    out.limit(abi.CardLimit(uuids[0], 1, limit, context))
    made.observer.run(
        "import select\n"
        "def watch():\n"
        "    most = 0\n"
        "    while not select.select([sys.stdin], [], [], 0)[0]:\n"
        "        most = max(most, used(0))\n"
        "    return most"
    )
    made.observer.start("watch()")
    workers = [out.server(CUDA) for _ in range(4)]
    for seed, worker in enumerate(workers):
        worker.run(
            "import random\n"
            "def work(rounds, seed):\n"
            "    r, held, got, refused = random.Random(seed), [], 0, 0\n"
            "    for _ in range(rounds):\n"
            "        if held and r.random() < 0.45: release(held.pop(r.randrange(len(held))))\n"
            "        error, pointer = allocate(r.randrange(1, 8 << 20))\n"
            "        assert error in (0, 2), error\n"
            "        if error == 0: held.append(pointer); got += 1\n"
            "        else: refused += 1\n"
            "    for pointer in held: release(pointer)\n"
            "    return [got, refused]"
        )
        worker.start(f"work(2000, {seed})")
    answers = [worker.answer() for worker in workers]
    assert all(got > 100 and refused > 100 for got, refused in answers)
    made.observer.start("0")
    most = made.observer.answer()
    assert made.observer.answer() == 0
    assert limit - 8 * M < most <= limit
    assert made.used() == 4 * context
    assert workers[0].run("info()")[0] == limit - 4 * context


def test_workers_forked_without_exec_each_have_an_account(
    out: Outside, uuids: list[str], made: Cards, context: int
) -> None:
    """As gunicorn does it: the parent has loaded and started the library; workers come, end, are killed, come again."""
    limit = 4 * context + 4 * M
    out.limit(abi.CardLimit(uuids[0], 1, limit, context))
    parent = out.server(
        "import os, signal\n"
        "from cuda.bindings import driver as cu\n"
        "assert int(cu.cuInit(0)[0]) == 0\n"
        "def worker():\n"
        "    r, w = os.pipe()\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        try:\n"
        f"            exec({CUDA!r}, globals())\n"
        f"            answer = allocate({M})[0]\n"
        "        except BaseException as error: answer = repr(error)\n"
        "        os.write(w, repr(answer).encode()); os.close(w)\n"
        "        while True: signal.pause()\n"
        "    os.close(w)\n"
        "    said = os.read(r, 1000).decode(); os.close(r)\n"
        "    return [pid, said]\n"
        "def end(pid, number): os.kill(pid, number); os.waitpid(pid, 0)"
    )
    workers = parent.run("[worker() for _ in range(4)]")
    assert [said for _, said in workers] == ["0"] * 4
    assert {row.pid: row.bytes for row in out.usage()} == {pid: context + M for pid, _ in workers}
    for number in ("SIGKILL", "SIGTERM") * 3:
        pid, _ = workers.pop(0)
        parent.run(f"end({pid}, signal.{number})")
        workers.append(parent.run("worker()"))
        assert workers[-1][1] == "0"  # it fits only because the one before gave everything back
        assert {row.pid for row in out.usage()} == {pid for pid, _ in workers}
    for pid, _ in workers:
        parent.run(f"end({pid}, signal.SIGTERM)")


def test_an_old_driver_without_stream_ordered_memory_still_serves(tmp_path: Path) -> None:
    """What the driver has not, the shim has not either, and everything else goes on."""
    source = (
        "import ctypes as c\n"
        "lib = c.CDLL('libcuda.so.1')\n"
        "context, address = c.c_void_p(), c.c_uint64()\n"
        "assert lib.cuInit(0) == 0 and lib.cuDevicePrimaryCtxRetain(c.byref(context), 0) == 0\n"
        "assert lib.cuCtxSetCurrent(context) == 0\n"
        "print(lib.cuMemAllocAsync(c.byref(address), c.c_size_t(512), None),\n"
        "      lib.cuMemAlloc_v2(c.byref(address), c.c_size_t(512)), lib.cuMemFree_v2(address))"
    )
    limit = abi.CardLimit(shim.UUID, 1, G)
    driver = shim.null_driver(tmp_path)  # it has a dozen functions, like one from long ago
    environment = shim.environment(tmp_path, driver, limit)
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "801 0 0\n"  # not supported; and the rest works


def test_without_a_driver_every_program_starts(tmp_path: Path) -> None:
    """Only who loads the driver hears that there is none."""
    driver = shim.null_driver(tmp_path)
    environment = shim.environment(tmp_path, driver, abi.CardLimit(shim.UUID, 1, G))
    driver.unlink()
    source = (
        "import ctypes, subprocess\n"
        "print(subprocess.run(['/bin/sh', '-c', 'echo started'], capture_output=True, text=True).stdout.strip())\n"
        "try: ctypes.CDLL('libcuda.so.1')\n"
        "except OSError as error: print('libcuda.so.1: cannot open' in str(error))"
    )
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("started\nTrue\n", "")
