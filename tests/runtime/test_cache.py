"""The cache in one process."""

from __future__ import annotations

import hashlib
import os
import pickle
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpuspawner_runtime.cache import Cache, CacheCorrupt, CacheFull, CacheTooSmall, cached, download, free_memory
from gpuspawner_runtime.cache import cache as cache_module
from gpuspawner_runtime.cache.sizes import parse_size
from runtime.stores import ObjectStore, object_store

MB = 1000**2
OBJECTS = {f"part-{i:02}.bin": os.urandom(MB + i) for i in range(12)}


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store(dict(OBJECTS)) as store:
        yield store


@pytest.fixture
def data(store: ObjectStore, tmp_path: Path) -> Cache:
    return cached(store.url, "100MB", folder=tmp_path)


def contents(cache: Cache) -> list[Path]:
    return [path for path in (cache.folder / "objects").rglob("*") if path.is_file()]


def test_an_object_is_fetched_once_and_comes_as_file_bytes_and_path(data: Cache, store: ObjectStore) -> None:
    name, content = "part-03.bin", OBJECTS["part-03.bin"]
    with data.open(name) as file:
        assert file.read(10) == content[:10]
        file.seek(-5, os.SEEK_END)
        assert file.read() == content[-5:]
    assert data.read(name) == data.read(name) == content
    assert Path(data.path(name)).read_bytes() == content
    assert data.path(name).endswith(name)
    assert store.gets == {name: 1}
    assert data.stats.memory_hits == 1
    assert data.size(name) == len(content)


def test_one_object_is_a_path(store: ObjectStore, tmp_path: Path) -> None:
    one = cached(store.url + "part-01.bin", folder=tmp_path)
    assert Path(one).read_bytes() == one.read() == OBJECTS["part-01.bin"]


def test_where_caches_lie(store: ObjectStore, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cached(store.url).folder.parent == home / ".cache/gpuspawner-runtime"
    monkeypatch.setenv("GPUSPAWNER_CACHE", str(tmp_path / "nvme"))
    assert cached(store.url).folder.parent == tmp_path / "nvme"


def test_the_same_call_gives_the_same_cache_with_the_new_limits(
    data: Cache, store: ObjectStore, tmp_path: Path
) -> None:
    data.read("part-00.bin"), data.read("part-01.bin")
    assert data.used() == 2 * MB + 1
    again = cached(store.url, "1500kB", folder=tmp_path)
    assert again is data
    assert len(contents(again)) == 1
    assert again.used() in (MB, MB + 1)


def test_a_pickled_cache_is_the_same_elsewhere(data: Cache) -> None:
    assert pickle.loads(pickle.dumps(data)) is data


def test_a_change_in_the_store_is_seen_after_check_seconds(store: ObjectStore, tmp_path: Path) -> None:
    always = cached(store.url, folder=tmp_path, check=0)
    assert always.read("part-00.bin") == OBJECTS["part-00.bin"]
    with always.open("part-00.bin") as before:
        store.objects["part-00.bin"] = b"new"
        assert always.read("part-00.bin") == b"new"
        assert before.read() == OBJECTS["part-00.bin"], "who has the old version open keeps it"
    assert cached(store.url, folder=tmp_path, check=3600).read("part-00.bin") == b"new"
    store.objects["part-00.bin"] = b"newest"
    assert always.read("part-00.bin") == b"new", "within check seconds nothing is asked"


def test_without_the_store_the_copy_from_before_is_used_and_said_so(store: ObjectStore, tmp_path: Path) -> None:
    data = cached(store.url, folder=tmp_path, check=0)
    data.read("part-00.bin")
    store.down = True
    with pytest.warns(UserWarning, match="does not answer"):
        assert data.read("part-00.bin") == OBJECTS["part-00.bin"]
    with pytest.raises(Exception, match="503"):
        data.read("part-01.bin")


def test_what_is_not_there_is_said_and_nothing_is_left(data: Cache) -> None:
    with pytest.raises(FileNotFoundError):
        data.read("no-such-object")
    assert contents(data) == []
    assert data.used() == 0


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b"])
def test_names_do_not_leave_the_address(data: Cache, name: str) -> None:
    with pytest.raises(ValueError, match="no name of an object"):
        data.read(name)


@pytest.mark.case("runtime-13")
def test_a_cache_smaller_than_one_object_says_so_at_once(store: ObjectStore, tmp_path: Path) -> None:
    small = cached(store.url, "500kB", folder=tmp_path)
    with pytest.raises(CacheTooSmall, match=r"part-00.bin has 1.0 MB, and the cache may hold 500.0 kB"):
        small.read("part-00.bin")
    assert store.gets == {}
    assert cached(store.url, "2MB", folder=tmp_path).read("part-00.bin") == OBJECTS["part-00.bin"]


def test_the_size_is_kept_and_what_is_open_stays(store: ObjectStore, tmp_path: Path) -> None:
    data = cached(store.url, "3500kB", folder=tmp_path, memory=0)
    kept = data.path("part-00.bin")
    with data.open("part-01.bin") as file:
        for name in sorted(OBJECTS):
            assert data.read(name) == OBJECTS[name]
            assert data.used() <= 3500_000
            assert sum(path.stat().st_size for path in contents(data)) <= 3500_000
        assert Path(kept).exists()
        assert file.read() == OBJECTS["part-01.bin"]
    assert store.gets["part-00.bin"] == store.gets["part-01.bin"] == 1


def test_a_cache_full_of_what_is_in_use_says_so(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_ROOM_SECONDS", 0.2)
    data = cached(store.url, "2500kB", folder=tmp_path)
    data.path("part-00.bin"), data.path("part-01.bin")
    with pytest.raises(CacheFull, match="in use"):
        data.read("part-02.bin")
    data.release("part-00.bin")
    assert data.read("part-02.bin") == OBJECTS["part-02.bin"]


def test_epochs_over_a_set_that_does_not_fit_find_a_part_of_it(store: ObjectStore, tmp_path: Path) -> None:
    """By age alone (LRU) every object would go just before it is wanted again, and nothing would ever be found."""
    data = cached(store.url, "6500kB", folder=tmp_path, memory=0)
    for _ in range(4):
        for name in sorted(OBJECTS):
            data.read(name)
    assert data.stats.downloads <= 12 + 3 * 7, "at least five of six stay"


def test_another_working_set_takes_over(store: ObjectStore, tmp_path: Path) -> None:
    data = cached(store.url, "4500kB", folder=tmp_path, memory=0)
    names = sorted(OBJECTS)
    for name in names[:4] * 3:
        data.read(name)
    for name in names[4:8] * 6:
        data.read(name)
    before = data.stats.downloads
    for name in names[4:8]:
        data.read(name)
    assert data.stats.downloads - before <= 1


def test_iterate_fetches_ahead_each_object_once(store: ObjectStore, tmp_path: Path) -> None:
    data = cached(store.url, "5500kB", folder=tmp_path, memory=0)
    store.latency = 0.02
    seen = []
    for name, file in data.iterate(sorted(OBJECTS), ahead=3):
        with file:
            assert file.read() == OBJECTS[name]
        seen.append(name)
    assert seen == sorted(OBJECTS)
    assert store.gets == dict.fromkeys(OBJECTS, 1)
    with pytest.raises(CacheTooSmall):
        list(cached(store.url, "500kB", folder=tmp_path).iterate(sorted(OBJECTS)))


def test_what_was_fetched_ahead_makes_way(store: ObjectStore, tmp_path: Path) -> None:
    data = cached(store.url, "3500kB", folder=tmp_path)
    names = sorted(OBJECTS)
    with data.ahead(names[:3], 3) as advance:
        advance()
        for name in names[:3]:
            data.open(name).close()
        with data.ahead(names[3:6], 3):
            assert data.read(names[8]) == OBJECTS[names[8]]


def test_prefetch_in_the_background(data: Cache, store: ObjectStore) -> None:
    from support.common import until

    data.prefetch(sorted(OBJECTS), threads=3)
    until(lambda: len(data._store.index.rows("ready = 1")) == len(OBJECTS))
    store.down = True
    assert all(data.read(name) == OBJECTS[name] for name in OBJECTS)


def test_a_broken_connection_is_tried_again(data: Cache, store: ObjectStore) -> None:
    store.break_after = 1000
    assert data.read("part-00.bin") == OBJECTS["part-00.bin"]


@pytest.mark.parametrize("etags", [True, False])
def test_content_is_compared(store: ObjectStore, tmp_path: Path, etags: bool) -> None:
    """By the store's hash where it gives one, else by a hash that the user gives."""
    store.etags = etags
    name, content = "part-00.bin", OBJECTS["part-00.bin"]
    hashes = {} if etags else {name: f"sha256:{hashlib.sha256(content).hexdigest()}"}
    data = cached(store.url, folder=tmp_path, hashes=hashes)
    store.garble = 1
    assert data.read(name) == content
    assert store.gets[name] == 2
    bad = cached(store.url, folder=tmp_path / "bad", hashes={name: "sha256:" + "0" * 64})
    with pytest.raises(CacheCorrupt, match="is not what sha256"):
        bad.read(name)
    assert contents(bad) == []


def test_a_hash_given_later_is_compared_too(data: Cache, store: ObjectStore, tmp_path: Path) -> None:
    data.read("part-00.bin")
    data._known.clear(), data._verified.clear()
    strict = cached(store.url, folder=tmp_path, hashes={"part-00.bin": "sha256:" + "0" * 64})
    with pytest.raises(CacheCorrupt):
        strict.open("part-00.bin")


def test_a_store_whose_mark_only_looks_like_a_hash(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_digest", lambda path, kind: hashlib.sha1(path.read_bytes()).hexdigest())
    data = cached(store.url, folder=tmp_path)
    assert data.read("part-00.bin") == OBJECTS["part-00.bin"]
    assert store.gets["part-00.bin"] == 2


def test_a_damaged_file_is_fetched_anew(data: Cache, store: ObjectStore) -> None:
    path = Path(data.path("part-00.bin"))
    data.release("part-00.bin")
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    data._known.clear()
    with data.open("part-00.bin") as file:
        assert file.read() == OBJECTS["part-00.bin"]
    assert store.gets["part-00.bin"] == 2


def test_after_a_restart_of_the_machine_contents_are_compared_once(data: Cache, store: ObjectStore) -> None:
    """What was not on the disk yet when the machine went down has the right size and time, and holes."""
    path = Path(data.path("part-00.bin"))
    data.read("part-01.bin")
    stat = path.stat()
    path.chmod(0o600)
    path.write_bytes(bytes(stat.st_size))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    path.chmod(0o400)
    data._store.boot = "the next boot"
    data._known.clear()
    data._memory.clear()
    assert data.read("part-00.bin") == OBJECTS["part-00.bin"]
    assert data.read("part-01.bin") == OBJECTS["part-01.bin"]
    assert store.gets == {"part-00.bin": 2, "part-01.bin": 1}


def test_a_lost_or_damaged_index_costs_downloads_only(store: ObjectStore, tmp_path: Path) -> None:
    data = cached(store.url, folder=tmp_path)
    data.read("part-00.bin")
    folder = data.folder
    data._store.index._connection().close()
    for path in folder.glob("index.sqlite*"):
        path.unlink()
    (folder / "index.sqlite").write_bytes(b"rubbish" * 1000)
    cache_module._open.clear()
    fresh = cached(store.url, folder=tmp_path)
    assert contents(fresh) == [], "what the index does not know is removed"
    assert fresh.read("part-00.bin") == OBJECTS["part-00.bin"]
    assert sqlite3.connect(folder / "index.sqlite").execute("SELECT count(*) FROM objects").fetchone() == (1,)


def test_large_objects_come_in_parts_and_go_on_where_they_stopped(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PART", 256 * 1024)
    store.objects["large"] = os.urandom(10 * 256 * 1024 + 7)
    data = cached(store.url, folder=tmp_path, workers=1)
    fetch, calls = data._remote.fetch, []

    def interrupted(name: str, start: int, end: int, size: int) -> bytes:
        calls.append(start)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return fetch(name, start, end, size)

    monkeypatch.setattr(data._remote, "fetch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.read("large")
    part = next(path for path in contents(data) if path.suffix == ".part")
    with part.open("r+b") as file:
        file.write(b"damaged")
    monkeypatch.setattr(data._remote, "fetch", fetch)
    before = store.gets["large"]
    data.configure(check=300, hashes={}, options={}, workers=4)
    assert data.read("large") == store.objects["large"]
    assert store.gets["large"] - before == 11 - 3, "three of the four parts were good"


def test_a_server_without_ranges(data: Cache, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = data._remote.filesystem()[0]
    whole = fs.cat_file
    monkeypatch.setattr(download, "PART", 256 * 1024)
    monkeypatch.setattr(fs, "cat_file", lambda path, start=None, end=None: whole(path))
    assert data.read("part-00.bin") == OBJECTS["part-00.bin"]


def test_threads_share_one_download(data: Cache, store: ObjectStore) -> None:
    store.latency = 0.1
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(data.read("part-05.bin"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [OBJECTS["part-05.bin"]] * 16
    assert store.gets == {"part-05.bin": 1}


def test_memory_is_given_back_when_asked(data: Cache) -> None:
    for name in OBJECTS:
        data.read(name)
    assert free_memory() >= sum(map(len, OBJECTS.values()))
    assert free_memory() == 0
    assert data.resize(memory="2MB") == 0
    data.read("part-00.bin"), data.read("part-01.bin")
    assert data._memory.used == 0, "an object may have a quarter of the memory"


def test_as_a_file_system(tmp_path: Path) -> None:
    (tmp_path / "set/a").mkdir(parents=True)
    (tmp_path / "set/a/x.txt").write_text("one\ntwo\n")
    (tmp_path / "set/y.txt").write_text("three")
    data = cached(f"file://{tmp_path}/set/", folder=tmp_path / "cache")
    assert data.files() == ["a/x.txt", "y.txt"]
    assert data.files("*.txt") == ["a/x.txt", "y.txt"]
    fs = data.filesystem()
    assert fs.ls("", detail=False) == ["a", "y.txt"]
    assert fs.glob("**/*.txt") == ["a/x.txt", "y.txt"]
    assert fs.isdir("a")
    with fs.open("a/x.txt", "r") as file:
        assert file.readlines() == ["one\n", "two\n"]
    with pytest.raises(PermissionError, match="read-only"):
        fs.open("y.txt", "wb")
    with pytest.raises(FileNotFoundError):
        fs.open("z.txt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": ""}, "url="),
        ({"hot": "8 apples"}, "hot='8 apples'"),
        ({"hot": -1}, "hot=-1"),
        ({"hot": True}, "hot=True"),
        ({"memory": "1iB"}, "memory="),
        ({"check": -1}, "check=-1"),
        ({"workers": 0}, "workers=0"),
        ({"hashes": "9f86"}, "hashes"),
        ({"hashes": {"a": "sha3000:00"}}, "hashes"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        cached(**{"url": "file:///tmp/x", "folder": tmp_path, **options})  # type: ignore[arg-type]


def test_sizes() -> None:
    assert parse_size("8GB", "hot") == 8 * 1000**3
    assert parse_size("8 GiB", "hot") == 8 << 30
    assert parse_size("1.5mb", "hot") == 1500_000
    assert parse_size(7, "hot") == 7
