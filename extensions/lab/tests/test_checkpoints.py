"""The reader of the runtime's state files, and its requests, on real files of the worst kinds."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from gpuspawner_lab.checkpoints import LARGEST_STATE, MOST_CHECKPOINTS, MOST_REQUESTS, CheckpointError, RunsFolder


def checkpoint(name: str = "step-1200", **changes: Any) -> dict[str, Any]:
    known = {
        "name": name,
        "step": 1200,
        "bytes": 419_430_400,
        "saved": "2026-01-01T12:00:00+00:00",
        "verified": True,
        "pinned": False,
    }
    return {**known, **changes}


def write(folder: Path, run: str = "resnet", **changes: Any) -> Path:
    """A state file, renamed into its place as the format asks."""
    state = {"format": 1, "run": run, "updated": "2026-01-01T12:00:05+00:00", "checkpoints": [checkpoint()], **changes}
    (folder / run).mkdir(parents=True, exist_ok=True)
    partial = folder / run / ".partial"
    partial.write_text(json.dumps(state))
    partial.rename(folder / run / "state.json")
    return folder / run / "state.json"


def test_no_folder_is_no_runs(tmp_path: Path) -> None:
    assert RunsFolder(tmp_path / "nowhere").runs() == []


def test_a_run_and_its_checkpoints_newest_first(tmp_path: Path) -> None:
    write(
        tmp_path,
        title="ResNet\n\x1b[31m-50",
        status="running",
        next_due="2026-01-01T14:10:00+02:00",
        checkpoints=[checkpoint("step-1", step=1), checkpoint("step-2", step=2, verified=False, pinned=True)],
        answers=[{"id": "a1", "outcome": "refused", "message": "It is gone."}],
    )
    (run,) = RunsFolder(tmp_path).runs()
    assert [row["name"] for row in run["checkpoints"]] == ["step-2", "step-1"]
    assert run["checkpoints"][0] == {
        "name": "step-2",
        "step": 2,
        "bytes": 419_430_400,
        "saved": "2026-01-01T12:00:00.000+00:00",
        "verified": False,
        "pinned": True,
    }
    assert run["next_due"] == "2026-01-01T12:10:00.000+00:00"
    assert run["title"] == "ResNet  [31m-50"
    assert (run["status"], run["problem"], run["requests"]) == ("running", None, [])
    assert run["answers"] == [{"id": "a1", "outcome": "refused", "message": "It is gone."}]


@pytest.mark.parametrize("wrong", ["12", -1, True, 1.5, 2**70, None, [1]])
def test_what_is_wrong_is_unknown_and_not_zero(tmp_path: Path, wrong: Any) -> None:
    write(tmp_path, checkpoints=[checkpoint(step=wrong, bytes=wrong, saved=wrong, verified="yes", pinned=1)], title=7)
    (run,) = RunsFolder(tmp_path).runs()
    (row,) = run["checkpoints"]
    assert [row[key] for key in ("step", "bytes", "saved", "verified", "pinned")] == [None] * 5
    assert run["title"] is None


@pytest.mark.parametrize("time", ["yesterday", "2026-01-01T12:00:00", "9" * 50, "0001-01-01T00:00:00+23:00"])
def test_times_without_an_offset_are_unknown(tmp_path: Path, time: str) -> None:
    write(tmp_path, next_due=time)
    assert RunsFolder(tmp_path).runs()[0]["next_due"] is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"format": 2}', "format"),
        (b'{"format": true, "run": "resnet", "checkpoints": []}', "format"),
        (b'{"format": 1, "run": "other", "checkpoints": []}', "not of the run"),
        (b'{"format": 1, "run": "resnet", "checkpoints": {}}', "no list of checkpoints"),
        (b" " * (LARGEST_STATE + 1), "larger than 256 KiB"),
    ],
)
def test_a_broken_file_is_a_sentence_and_hides_no_other_run(tmp_path: Path, content: bytes, reason: str) -> None:
    write(tmp_path, "good")
    write(tmp_path).write_bytes(content)
    runs = {run["run"]: run for run in RunsFolder(tmp_path).runs()}
    assert reason in runs["resnet"]["problem"]
    assert runs["resnet"]["checkpoints"] == []
    assert runs["good"]["problem"] is None


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(json.dumps({"format": 1, "run": "linked", "checkpoints": [], "title": "secret"}))
    runs = tmp_path / "runs"
    for name in ("linked", "piped", "folder"):
        (runs / name).mkdir(parents=True)
    (runs / "linked" / "state.json").symlink_to(secret)
    os.mkfifo(runs / "piped" / "state.json")
    (runs / "folder" / "state.json").mkdir()
    found = RunsFolder(runs).runs()
    assert len(found) == 3
    assert all(run["problem"] for run in found)
    assert "secret" not in json.dumps(found)


def test_names_that_leave_the_folder_are_not_runs(tmp_path: Path) -> None:
    write(tmp_path, "-x")
    write(tmp_path, "a b")
    write(tmp_path, checkpoints=[checkpoint("../../etc"), checkpoint(".hidden"), checkpoint("ok"), "row", None])
    (run,) = RunsFolder(tmp_path).runs()
    assert [row["name"] for row in run["checkpoints"]] == ["ok"]


def test_only_the_newest_checkpoints_are_shown(tmp_path: Path) -> None:
    write(tmp_path, checkpoints=[checkpoint(f"s{n}") for n in range(MOST_CHECKPOINTS + 50)])
    names = [row["name"] for row in RunsFolder(tmp_path).runs()[0]["checkpoints"]]
    assert len(names) == MOST_CHECKPOINTS
    assert (names[0], names[-1]) == (f"s{MOST_CHECKPOINTS + 49}", "s50")


def test_a_new_file_is_seen(tmp_path: Path) -> None:
    runs = RunsFolder(tmp_path)
    write(tmp_path)
    assert runs.runs()[0]["checkpoints"][0]["pinned"] is False
    write(tmp_path, checkpoints=[checkpoint(pinned=True)])
    assert runs.runs()[0]["checkpoints"][0]["pinned"] is True


def test_a_request_is_a_file_that_waits_until_it_is_taken(tmp_path: Path) -> None:
    write(tmp_path)
    runs = RunsFolder(tmp_path)
    name = runs.request("resnet", "step-1200", "pin")
    (path,) = (tmp_path / "resnet" / "requests").iterdir()
    assert path.name == f"{name}.json"
    asked = json.loads(path.read_text())
    assert {key: asked[key] for key in ("format", "id", "action", "checkpoint")} == {
        "format": 1,
        "id": name,
        "action": "pin",
        "checkpoint": "step-1200",
    }
    assert [(each["id"], each["action"]) for each in runs.runs()[0]["requests"]] == [(name, "pin")]
    path.unlink()
    assert runs.runs()[0]["requests"] == []


@pytest.mark.parametrize(
    ("run", "name", "action", "field"),
    [
        ("resnet", "step-1200", "delete", "action"),
        ("resnet", "step-1200", None, "action"),
        ("nowhere", "step-1200", "pin", "run"),
        ("../resnet", "step-1200", "pin", "run"),
        (None, "step-1200", "pin", "run"),
        ("resnet", "step-9", "pin", "checkpoint"),
        ("resnet", ["step-1200"], "pin", "checkpoint"),
    ],
)
def test_what_cannot_be_asked_for_names_the_field(tmp_path: Path, run: Any, name: Any, action: Any, field: str) -> None:
    write(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        RunsFolder(tmp_path).request(run, name, action)
    assert caught.value.field == field
    assert not (tmp_path / "resnet" / "requests").exists()


def test_requests_do_not_pile_up(tmp_path: Path) -> None:
    write(tmp_path)
    runs = RunsFolder(tmp_path)
    for _ in range(MOST_REQUESTS):
        runs.request("resnet", "step-1200", "pin")
    with pytest.raises(CheckpointError, match="wait for the runtime already"):
        runs.request("resnet", "step-1200", "pin")


def test_a_request_never_leaves_through_a_link(tmp_path: Path) -> None:
    write(tmp_path / "runs")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "runs" / "resnet" / "requests").symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="cannot be written"):
        RunsFolder(tmp_path / "runs").request("resnet", "step-1200", "pin")
    assert list(elsewhere.iterdir()) == []


def test_several_may_read_while_runs_come_and_go(tmp_path: Path) -> None:
    """The panel's endpoint and its telemetry read in threads of their own."""
    folder = RunsFolder(tmp_path)
    failed: list[BaseException] = []
    over = threading.Event()

    def read() -> None:
        try:
            while not over.is_set():
                folder.runs()
        except BaseException as error:
            failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for turn in range(300):
        write(tmp_path, f"run-{turn}")
        if turn >= 20:
            shutil.rmtree(tmp_path / f"run-{turn - 20}")
    over.set()
    for reader in readers:
        reader.join()
    assert failed == []
