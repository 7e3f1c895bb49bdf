"""The cache between processes, and when they are killed."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from gpuspawner_runtime.cache import cached
from runtime import cache_processes
from runtime.stores import ObjectStore, object_store
from support.common import until

MB = 1000**2
READERS = 40
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["runtime.cache_processes", "fsspec.implementations.http", "aiohttp"])


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store({f"part-{i}": os.urandom(2 * MB + i) for i in range(4)}) as store:
        yield store


@pytest.fixture
def started() -> Iterator[list[BaseProcess]]:
    started: list[BaseProcess] = []
    yield started
    for process in started:
        process.kill()
        process.join()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.case("runtime-12")
def test_forty_readers_of_what_is_not_here_yet(store: ObjectStore, tmp_path: Path, started: list[BaseProcess]) -> None:
    """One download for each object, and every reader has the right bytes."""
    store.rate = 20 * MB
    names, results, barrier = sorted(store.objects), processes.Queue(), processes.Barrier(READERS)
    for _ in range(READERS):
        args = (store.url, names, {"folder": str(tmp_path)}, barrier, results)
        started.append(processes.Process(target=cache_processes.read_all, args=args))
        started[-1].start()
    found = [results.get(timeout=150) for _ in range(READERS * len(names))]
    assert [one for one in found if one[1] != digest(store.objects[one[0]])] == []
    assert len({pid for _, _, pid in found}) == READERS
    assert store.gets == dict.fromkeys(names, 1)


def start(started: list[BaseProcess], target: object, *args: object) -> BaseProcess:
    process = processes.Process(target=target, args=args)  # type: ignore[arg-type]
    started.append(process)
    process.start()
    return process


@pytest.mark.case("runtime-13")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_after_ctrl_c_or_kill_in_a_download_it_starts_again(
    store: ObjectStore, tmp_path: Path, started: list[BaseProcess], how: signal.Signals
) -> None:
    store.rate = 1 * MB
    results, options = processes.Queue(), {"folder": str(tmp_path), "hot": "3MB"}
    reader = start(started, cache_processes.read_one, store.url, "part-0", options, results)
    until(lambda: store.sent > 200_000, 60)
    assert reader.pid is not None
    waiter = start(started, cache_processes.read_one, store.url, "part-0", options, results)
    until(lambda: list(tmp_path.rglob("*.part")), 60)
    os.kill(reader.pid, how)
    store.rate = None
    reader.join(60)
    assert reader.exitcode not in (0, None)
    assert results.get(timeout=60) == digest(store.objects["part-0"]), "who waited takes over"
    waiter.join(60)
    data = cached(store.url, **options)  # type: ignore[arg-type]
    assert data.read("part-1") == store.objects["part-1"], "what the dead one had promised itself is free"
    assert not list(tmp_path.rglob("*.part"))


def test_what_another_process_has_open_stays_until_it_dies(
    store: ObjectStore, tmp_path: Path, started: list[BaseProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuspawner_runtime.cache import CacheFull
    from gpuspawner_runtime.cache import cache as module

    monkeypatch.setattr(module, "_ROOM_SECONDS", 0.3)
    results, is_open, options = processes.Queue(), processes.Event(), {"folder": str(tmp_path), "hot": "3MB"}
    reader = start(started, cache_processes.keep_open, store.url, "part-0", options, is_open, results)
    assert is_open.wait(60)
    data = cached(store.url, **options)  # type: ignore[arg-type]
    with pytest.raises(CacheFull):
        data.read("part-1")
    assert data.read("part-0") == store.objects["part-0"]
    reader.kill()
    reader.join()
    assert data.read("part-1") == store.objects["part-1"]


def test_a_forked_child_reads_too(store: ObjectStore, tmp_path: Path, started: list[BaseProcess]) -> None:
    store.objects["part-0-2"] = b"another"
    results = processes.Queue()
    child = start(started, cache_processes.fork_and_read, store.url, "part-0", {"folder": str(tmp_path)}, results)
    assert results.get(timeout=60) == 0
    child.join(60)
    assert child.exitcode == 0


def test_a_changing_object_never_comes_mixed(store: ObjectStore, tmp_path: Path, started: list[BaseProcess]) -> None:
    """Ten readers, and an object that is replaced while they read: all have one version or the other."""
    store.rate = 10 * MB
    old, new = store.objects["part-0"], os.urandom(2 * MB)
    results, barrier = processes.Queue(), processes.Barrier(10)
    for _ in range(10):
        options = {"folder": str(tmp_path), "check": 0}
        start(started, cache_processes.read_all, store.url, ["part-0"] * 3, options, barrier, results)
    assert store.started.wait(60)
    store.objects["part-0"] = new
    found = {results.get(timeout=100)[1] for _ in range(30)}
    assert found <= {digest(old), digest(new)}
    assert digest(new) in found
