"""Checkpoints on the disk: what a kill, a full disk and rubbish leave behind, and what is found then."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from gpuspawner_runtime import autocheckpoint
from gpuspawner_runtime.checkpoint import store as stores
from gpuspawner_runtime.checkpoint.find import newest
from gpuspawner_runtime.checkpoint.remote import Remote
from gpuspawner_runtime.checkpoint.store import MANIFEST, Store
from gpuspawner_runtime.errors import RuntimeFault
from runtime.trainings import Trainings

Save = Callable[..., int]


@pytest.fixture
def save(trainings: Trainings, tmp_path: Path) -> Save:
    """Saves in a process of its own, which may be killed at a step of it; gives its status."""

    def save(folder: Path, name: str, serial: int, deadly: int = 0) -> int:
        return trainings.start("save_and_die.py", folder, name, serial, deadly, home=tmp_path).wait()

    return save


@pytest.fixture(scope="module")
def saved(trainings: Trainings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("saved")
    for serial in (1, 2, 3):
        ended = trainings.start("save_and_die.py", home / "run", f"step-{serial}", serial, 0, home=home).wait()
        assert ended == 0
    return home / "run"


@pytest.fixture
def store(tmp_path: Path, saved: Path) -> Store:
    """Three checkpoints, whose bytes are 1, 2 and 3, and of which the first is gone since two are kept."""
    return Store(shutil.copytree(saved, tmp_path / "run"))


def content(store: Store, name: str) -> set[int]:
    return {byte for file in ("rank-0.safetensors", "rank-0.pt") for byte in (store.folder / name / file).read_bytes()}


def test_the_newest_are_kept_and_all_pinned_ones(store: Store, save: Save) -> None:
    assert [entry.name for entry in store.entries()] == ["step-2", "step-3"]
    store.pin("step-2", True)
    for serial in (4, 5, 6):
        assert save(store.folder, f"step-{serial}", serial) == 0
    assert [entry.name for entry in store.entries()] == ["step-2", "step-5", "step-6"]
    store.pin("step-2", False)
    assert store.prune(keep=2) == ["step-2"]
    with pytest.raises(KeyError):
        store.pin("step-2", True)


def test_a_name_that_is_taken_is_not_written_over(store: Store) -> None:
    assert store.free_name("step-3") == "step-3+1"
    assert store.free_name("step-9") == "step-9"
    assert store.next_serial() == 4


@pytest.mark.case("runtime-2")
@pytest.mark.parametrize("name", ["step-4", "step-3"], ids=["another name", "the same name"])
@pytest.mark.timeout(900)
def test_killed_at_every_moment_of_a_save_there_is_a_whole_checkpoint(name: str, store: Store, save: Save) -> None:
    begin = store.folder.with_name("begin")
    store.folder.rename(begin)
    deadly, whole, status = 0, [], -signal.SIGKILL
    while status == -signal.SIGKILL:
        deadly += 1
        shutil.rmtree(store.folder, ignore_errors=True)
        shutil.copytree(begin, store.folder)
        status = save(store.folder, store.free_name(name), 4, deadly)
        found = newest(store).entry
        assert found is not None
        assert found.serial in (3, 4)
        assert content(store, found.name) == {found.serial}
        whole.append(found.serial == 4)
        if status:
            assert save(store.folder, store.free_name("step-5"), 5) == 0, "the next save goes on from any of them"
            assert not store.look()[1], "it has collected what the killed one left"
    assert status == 0
    assert 15 < deadly < 100
    # killed early there is the old one, and late the new one
    assert not whole[0]
    assert whole == sorted(whole)
    assert whole[-1]


def spoil(path: Path, how: str) -> None:
    file = path / "rank-0.safetensors"
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "one bit":
        held = bytearray(file.read_bytes())
        held[1000] ^= 1
        file.write_bytes(held)
    elif how == "no file":
        file.unlink()
    elif how == "no manifest":
        (path / MANIFEST).unlink()
    elif how == "empty manifest":
        (path / MANIFEST).write_bytes(b"")
    elif how == "half a manifest":
        held = (path / MANIFEST).read_bytes()
        (path / MANIFEST).write_bytes(held[: len(held) // 2])
    elif how == "another format":
        (path / MANIFEST).write_text(json.dumps({**json.loads((path / MANIFEST).read_text()), "format": 2}))
    elif how == "one bit of the manifest":
        held = (path / MANIFEST).read_bytes()
        assert b'"serial": 3' in held
        (path / MANIFEST).write_bytes(held.replace(b'"serial": 3', b'"serial": 7'))
    elif how in ("no pieces", "no hashes", "other words"):
        files = {"no pieces": {"bytes": 150_000, "pieces": []}, "no hashes": {"bytes": 150_000}, "other words": None}
        manifest = json.loads((path / MANIFEST).read_text())
        manifest["files"] = dict.fromkeys(manifest["files"], files[how])
        (path / MANIFEST).write_bytes(stores.sealed(manifest))


@pytest.mark.case("runtime-1")
@pytest.mark.case("runtime-4")
@pytest.mark.parametrize(
    "how",
    [
        *("cut", "empty", "one bit", "no file", "no manifest", "empty manifest", "half a manifest", "another format"),
        *("one bit of the manifest", "no pieces", "no hashes", "other words"),
    ],
)
def test_what_is_not_whole_is_passed_over_and_named_and_later_collected(how: str, store: Store, save: Save) -> None:
    spoil(store.folder / "step-3", how)
    found = newest(store)
    assert found.entry is not None
    assert found.entry.name == "step-2"
    assert [each.name for each in found.skipped] == ["step-3"]
    assert found.skipped[0].reason
    save(store.folder, "step-4", 4)
    save(store.folder, "step-5", 5)
    assert {path.name for path in store.folder.iterdir()} == {"step-4", "step-5"}


@pytest.mark.case("runtime-4")
def test_rubbish_beside_checkpoints_changes_nothing(store: Store) -> None:
    (store.folder / "latest").write_text("step-99")
    (store.folder / "step-99").write_bytes(b"")
    (store.folder / "link").symlink_to("step-2")
    (store.folder / ".partial-step-9-0123").mkdir()
    found = newest(store)
    assert found.entry is not None
    assert found.entry.name == "step-3"
    assert [each.name for each in found.skipped] == [".partial-step-9-0123"]
    assert newest(Store(store.folder / "nowhere")).entry is None


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.case("runtime-3")
def test_on_a_disk_that_is_full_already_training_goes_on_with_an_alarm(small: Path) -> None:
    (small / "run").mkdir()
    (small / "run" / "lock").touch()
    with contextlib.suppress(OSError):
        (small / "rubbish").write_bytes(bytes(2**21))
    model = torch.nn.Linear(200, 200)
    with autocheckpoint("run", model=model, store=small) as saver:
        saver.step()
        assert saver.save(wait=True) is None
        assert "missing on the disk" in str(saver.alarm)
        saver.step()
        assert saver.steps == 2


def test_a_place_that_cannot_be_written_is_named_at_once(small: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    for place in (small, tmp_path / "file" / "below"):
        with pytest.raises(RuntimeFault, match="cannot be written") as fault:
            autocheckpoint("run", model=torch.nn.Linear(2, 2), store=place)
        assert fault.value.field == "store"


@pytest.mark.case("runtime-3")
@pytest.mark.parametrize("seen", [True, False], ids=["seen before", "while it is written"])
def test_a_full_disk_leaves_the_last_good_one(seen: bool, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mmap
    import socket

    from gpuspawner_runtime.checkpoint import writer as writers

    monkeypatch.setattr(stores, "MARGIN", 0 if seen else -(2**30))
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    writer = writers.Writer(theirs)
    size = 400_000
    writer.memory = mmap.mmap(-1, size)
    outcomes = []
    for serial in (1, 2, 3):
        writer._save(
            {
                "id": serial, "run": "test", "folder": str(small / "run"), "name": f"step-{serial}", "token": "0",
                "serial": serial, "step": serial, "world": 1, "rank": 0, "keep": 5, "url": None, "trained": 0.0,
                "failures": 0, "torn": False,
                "parts": [{"name": "rank-0.pt", "begin": 0, "bytes": size}],
            }
        )  # fmt: skip
        while (event := json.loads(mine.recv(65536)))["event"] not in ("verified", "failed"):
            pass
        outcomes.append(event)
    assert [each["event"] for each in outcomes] == ["verified", "verified", "failed"]
    assert outcomes[2]["code"] == "no_space"
    assert ("missing on the disk" in outcomes[2]["message"]) == seen
    store = Store(small / "run")
    found = newest(store)
    assert found.entry is not None
    assert found.entry.name == "step-2"
    assert not found.skipped, "what was begun is removed at once: its room is needed"


def test_a_store_behind_a_url_has_the_same_and_gives_it_back(store: Store, tmp_path: Path) -> None:
    remote = Remote(f"file://{tmp_path}/bucket", "run")
    for entry in store.entries():
        remote.upload(entry)
    remote.pin("step-2", True)
    remote.prune(keep=1)
    assert [entry.name for entry in remote.entries()] == ["step-2", "step-3"]
    # an upload that was not finished
    (tmp_path / "bucket" / "run" / "step-4").mkdir()
    (tmp_path / "bucket" / "run" / "step-4" / "rank-0.pt").write_bytes(b"x")
    other = Store(tmp_path / "other")
    other.folder.mkdir()
    found = newest(other, remote)
    assert found.entry is not None
    assert content(other, found.entry.name) == {3}
    spoil(tmp_path / "bucket" / "run" / "step-3", "one bit")
    third = Store(tmp_path / "third")
    third.folder.mkdir()
    found = newest(third, remote)
    assert found.entry is not None
    assert found.entry.name == "step-2"
    assert [each.name for each in found.skipped] == ["step-3"]
    remote.prune(keep=2)
    assert not (tmp_path / "bucket" / "run" / "step-4").exists()


def test_a_store_that_fails_for_a_moment_loses_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be read just now is neither unfinished nor without a pin."""
    remote = Remote(f"file://{tmp_path}/bucket", "run")
    for entry in store.entries():
        remote.upload(entry)
    remote.pin("step-2", True)

    def fails(place: str, *_: object, **__: object) -> None:
        raise OSError(f"{place}: try again")

    for name in ("cat_file", "info"):
        with monkeypatch.context() as patch:
            patch.setattr(remote.files, name, fails)
            with contextlib.suppress(OSError):
                remote.prune(keep=1)
    assert [entry.name for entry in remote.entries()] == ["step-2", "step-3"]


def test_a_store_that_no_one_knows_is_refused_without_its_password() -> None:
    with pytest.raises(RuntimeFault) as fault:
        Remote("nothing://me:secret@host/place", "run")
    assert "secret" not in str(fault.value)
    assert fault.value.field == "store"
