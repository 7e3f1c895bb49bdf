"""`run` and `autocheckpoint` as a person uses them."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpuspawner_runtime import RuntimeFault, autocheckpoint, notices, run, runs
from gpuspawner_runtime import run as run_function
from gpuspawner_runtime.checkpoint import lock
from gpuspawner_runtime.checkpoint.opened import Opened
from gpuspawner_runtime.checkpoint.store import MANIFEST, hash_piece, sealed
from gpuspawner_runtime.run import _RUNS, Run
from runtime.models import MODELS
from support.common import until
from torch.utils.data import DataLoader

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # however slow the machine is, a step ends in time
    monkeypatch.setattr(notices, "GRACE", dict.fromkeys(notices.GRACE, 300.0))
    yield
    for known in _RUNS.values():
        known.close()
    _RUNS.clear()


class Setting:
    """What the cells of a notebook make before `run`."""

    def __init__(self, samples: int = 40, seed: int = 1) -> None:
        torch.manual_seed(seed)
        self.task = MODELS["lstm"]()
        self.model: Any = self.task.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        x, y = self.task.batch(samples, torch.Generator().manual_seed(0))
        self.loader = DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4, shuffle=True)

    def run(self, name: str = "mine", **more: Any) -> Run:
        return run_function(name, model=self.model, optimizer=self.optimizer, loader=self.loader, **more)

    def train(self, r: Run, most: int = 10_000) -> int:
        done = 0
        for batch in r:
            r.step(self.task.loss(self.model, batch))
            done += 1
            if done == most:
                break
        return done

    @property
    def weights(self) -> list[list[float]]:
        return [value.flatten().tolist() for value in self.model.state_dict().values()]


def state(home: Path, name: str = "mine") -> dict[str, Any]:
    read = json.loads((home / ".local/state/gpuspawner-runtime/runs" / name / "state.json").read_text())
    assert isinstance(read, dict)
    return read


@pytest.mark.case("runtime-10")
def test_a_cell_that_runs_again_goes_on_in_memory_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Setting()
    with mine.run() as first:
        assert mine.train(first, 3) == 3
    monkeypatch.setattr(type(first.saver), "_load", lambda *_: pytest.fail("it was loaded"))
    with mine.run() as second:
        assert second is first
        assert second.steps == 3
        assert mine.train(second) == 7
    with mine.run() as third:
        assert mine.train(third) == 0, "the run is done"
    with mine.run(epochs=2) as fourth:
        assert mine.train(fourth) == 10


def test_a_cell_that_makes_everything_anew_goes_on_from_the_newest(capsys: pytest.CaptureFixture[str]) -> None:
    whole = Setting()
    with whole.run("whole") as r:
        whole.train(r)
    first = Setting()
    with first.run() as r:
        first.train(r, 4)
    second = Setting(seed=2)
    with second.run() as r:
        assert (r.resumed, r.steps) == ("step-4", 4)
        assert second.weights == first.weights
        second.train(r)
    assert second.weights == whole.weights
    assert "goes on from step-4" in capsys.readouterr().out


def test_fresh_begins_anew_and_the_old_ones_are_not_taken_later() -> None:
    first = Setting()
    with first.run() as r:
        first.train(r, 6)
    second = Setting(seed=2)
    with second.run(fresh=True) as r:
        assert (r.resumed, r.steps) == (None, 0)
        second.train(r, 2)
    third = Setting(seed=3)
    with third.run() as r:
        assert r.steps == 2
        assert third.weights == second.weights


def test_epochs_one_by_one_and_their_rest_after_a_resume() -> None:
    seen = []
    first = Setting()
    with first.run() as r:
        for epoch in r.epochs(3):
            seen.append((epoch, first.train(r, 10 if epoch == 0 else 6)))
            if epoch == 1:
                break
    second = Setting(seed=2)
    with second.run() as r:
        for epoch in r.epochs(3):
            seen.append((epoch, second.train(r)))
    assert seen == [(0, 10), (1, 6), (1, 4), (2, 10)]


def test_state_of_ones_own_comes_back_into_the_dict() -> None:
    first, kept = Setting(), {"best": 0.5, "names": ("a", None), "mean": torch.ones(3), 7: {1, 2}}
    with first.run(state=kept) as r:
        first.train(r, 2)
    second, other = Setting(seed=2), {"best": 9.0}
    with second.run(state=other) as r:
        assert torch.equal(other.pop("mean"), torch.ones(3))  # type: ignore[arg-type]
        assert other == {"best": 0.5, "names": ("a", None), 7: {1, 2}}
        assert r.state is other


def test_what_cannot_be_saved_is_said_at_once_with_its_place() -> None:
    with pytest.raises(RuntimeFault, match=r"state/deep/1 cannot be saved: it is a builtins\.function"):
        Setting().run(state={"deep": [1, lambda: 0]})
    assert not _RUNS


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"keep": 0}, "keep"),
        ({"keep": True}, "keep"),
        ({"every": 601}, "every"),
        ({"every": float("nan")}, "every"),
        ({"every": "often"}, "every"),
        ({"epochs": 0}, "epochs"),
        ({"state": [1]}, "state"),
        ({"store": 7}, "store"),
        ({"parts": {"mine": 7}}, "mine"),
        ({"accumulate": 0}, "accumulate"),
    ],
)
def test_bad_values_name_the_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(RuntimeFault) as fault:
        Setting().run(**given)
    assert fault.value.field == field


@pytest.mark.parametrize("name", ["", "../up", "a b", ".hidden", "x" * 101, None, "a\n"])
def test_bad_names_are_refused(name: Any) -> None:
    with pytest.raises(RuntimeFault) as fault:
        Setting().run(name)
    assert fault.value.field == "name"


@pytest.mark.case("runtime-9")
@pytest.mark.parametrize("compiled_first", [True, False])
def test_a_compiled_model_and_a_plain_one_share_checkpoints(compiled_first: bool) -> None:
    first = Setting()
    if compiled_first:
        first.model = torch.compile(first.model, backend="eager")
    with first.run() as r:
        first.train(r, 2)
    second = Setting(seed=2)
    plain = second.model
    if not compiled_first:
        second.model = torch.compile(second.model, backend="eager")
    with second.run() as r:
        assert r.steps == 2
    values = zip(first.task.model.state_dict().values(), plain.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in values)


def test_a_checkpoint_of_another_model_is_refused_and_stays(home: Path) -> None:
    first = Setting()
    with first.run() as r:
        first.train(r, 1)
    other = torch.nn.Linear(2, 2)
    with pytest.raises(RuntimeFault, match="of another model") as fault:
        run("mine", model=other, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    assert fault.value.code == "other_model"
    second = Setting(seed=2)
    with second.run() as r:
        assert r.steps == 1, "the run is free again and its checkpoint is there"


def test_weights_that_change_outside_of_the_optimizer_are_saved_as_one_moment() -> None:
    first = Setting()
    with first.run(every=0.001, keep=100) as r:
        for number, batch in enumerate(r):
            r.step(first.task.loss(first.model, batch))
            with torch.no_grad():
                for parameter in first.model.parameters():
                    parameter.clamp_(-0.2, 0.2)
            if number == 5:
                r.save("clamped")
                wanted = first.weights
                break
        first.train(r)
    second = Setting(seed=2)
    runs.request("restore", "clamped")
    with second.run() as r:
        assert r.resumed == "clamped"
        assert second.weights == wanted


def test_the_panel_sees_pins_and_restores(home: Path) -> None:
    mine = Setting()
    with mine.run(keep=1) as r:
        mine.train(r, 2)
        r.save("first")
        at_first = mine.weights
        request = runs.request("pin", "first")
        assert request.name == "mine"
        until(lambda: state(home)["checkpoints"][-1]["pinned"], 30)
        mine.train(r, 3)
        r.save("second")
        until(lambda: [row["verified"] for row in state(home)["checkpoints"]] == [True, True], 30)
        assert [row["name"] for row in state(home)["checkpoints"]] == ["first", "second"]
        runs.request("restore", "first")
        until(lambda: r.saver.panel.wanted, 30)
        for number, batch in enumerate(r):
            r.step(mine.task.loss(mine.model, batch))
            if number == 0:
                assert r.steps == 2, "it went back at the end of the step"
                assert mine.weights == at_first
            if number == 3:
                break
        assert r.steps == 5
    answers = state(home)["answers"]
    assert [each["outcome"] for each in answers] == ["done", "done"]
    assert state(home)["status"] == "paused"
    assert not list((home / ".local/state/gpuspawner-runtime/runs/mine/requests").iterdir())


def test_what_was_asked_while_nobody_trained_is_done_in_a_run_of_a_moment(home: Path) -> None:
    mine = Setting()
    with mine.run() as r:
        mine.train(r, 2)
        r.save("first")
    runs.request("pin", "first")
    with mine.run():
        pass
    assert state(home)["checkpoints"][-1]["pinned"]
    assert state(home)["answers"][-1]["outcome"] == "done"


def test_after_going_back_the_training_is_the_same_again() -> None:
    mine = Setting()
    before: dict[int, Any] = {}
    after: dict[int, Any] = {}
    with mine.run() as r:
        mine.train(r, 2)
        r.save("second")
        for batch in r:
            r.step(mine.task.loss(mine.model, batch))
            if r.steps == 6 and not after:
                runs.request("restore", "second")
                until(lambda: r.saver.panel.wanted, 30)
            if after or r.steps == 2:
                after[r.steps] = mine.weights
            else:
                before[r.steps] = mine.weights
        assert r.steps == 10
    assert sorted(before) == [3, 4, 5, 6]
    assert sorted(after) == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert all(after[step] == weights for step, weights in before.items())


def test_a_notice_saves_and_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    notice = tmp_path / "notice"
    monkeypatch.setenv("GPUSPAWNER_PREEMPTION_FILE", str(notice))
    monkeypatch.setattr("gpuspawner_runtime.notices._LOOK_EVERY", 0.0)  # or a quick machine is done before the look
    mine = Setting(samples=400)
    with mine.run(every=600) as r:
        mine.train(r, 2)
        notice.touch()
        for batch in r:
            r.step(mine.task.loss(mine.model, batch))
            if r.saver.saves:
                break
        assert r.saver.saves == 1


def test_signals_of_the_program_are_called_after_the_save(home: Path) -> None:
    called: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: called.append(number))
    try:
        mine = Setting()
        with mine.run(every=600) as r:
            for number, batch in enumerate(r):
                if number == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
                    assert not called, "in the middle of a step nothing is saved"
                r.step(mine.task.loss(mine.model, batch))
                if number == 3:
                    assert called == [signal.SIGTERM]
                    assert r.saver.saves == 1
        assert callable(signal.getsignal(signal.SIGTERM))
        os.kill(os.getpid(), signal.SIGTERM)
        assert called == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.case("runtime-5")
def test_ctrl_c_saves_and_is_raised_as_ever() -> None:
    mine = Setting()

    def cell() -> None:
        with mine.run(every=600) as r:
            for number, batch in enumerate(r):
                if number == 3:
                    os.kill(os.getpid(), signal.SIGINT)
                r.step(mine.task.loss(mine.model, batch))

    with pytest.raises(KeyboardInterrupt):
        cell()
    second = Setting(seed=2)
    with second.run() as r:
        assert r.steps == 4
        assert second.weights == mine.weights


def test_an_error_in_the_cell_loses_nothing() -> None:
    mine = Setting()

    def cell() -> None:
        with mine.run(every=600) as r:
            for number, batch in enumerate(r):
                if number == 3:
                    raise ZeroDivisionError
                r.step(mine.task.loss(mine.model, batch))

    with pytest.raises(ZeroDivisionError):
        cell()
    second = Setting(seed=2)
    with second.run() as r:
        assert r.steps == 3
        assert second.weights == mine.weights


def test_a_loop_of_ones_own() -> None:
    def training(steps: int, seed: int) -> tuple[Any, int]:
        mine = Setting(seed=seed)
        with autocheckpoint("loop", model=mine.model, optimizer=mine.optimizer) as saver:
            begun = saver.steps
            while saver.steps < steps:
                mine.optimizer.zero_grad()
                x = torch.randn(4, 16, 4)
                mine.task.loss(mine.model, (x, x[:, 0])).backward()
                mine.optimizer.step()
                saver.step()
        return mine.weights, begun

    _, begun = training(5, seed=1)
    assert begun == 0
    twice, begun = training(9, seed=2)
    assert begun == 5
    _RUNS.clear()
    mine = Setting(seed=1)
    with autocheckpoint("other", model=mine.model, optimizer=mine.optimizer) as saver:
        while saver.steps < 9:
            mine.optimizer.zero_grad()
            x = torch.randn(4, 16, 4)
            mine.task.loss(mine.model, (x, x[:, 0])).backward()
            mine.optimizer.step()
            saver.step()
    assert mine.weights == twice


class Deadly:
    """Runs code where a pickle is loaded without care."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.mark,)


def make_hostile(checkpoint: Path, mark: Path) -> None:
    """Put code into a checkpoint, with hashes that are right."""
    torch.save({"names": [], "tree": Deadly(mark)}, checkpoint / "rank-0.pt")
    written = (checkpoint / "rank-0.pt").read_bytes()
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest["files"]["rank-0.pt"] = {"bytes": len(written), "pieces": [hash_piece(written)]}
    (checkpoint / MANIFEST).write_bytes(sealed(manifest))


def test_code_in_a_checkpoint_is_not_run(home: Path) -> None:
    mine = Setting()
    folder, mark = home / ".local/share/gpuspawner-runtime/checkpoints/mine", home / "mark"
    with mine.run() as r:
        mine.train(r, 2)
        r.save("first")
        mine.train(r, 2)
        r.save("second")
        make_hostile(folder / "first", mark)
        runs.request("restore", "first")
        until(lambda: r.saver.panel.wanted, 30)
        weights = mine.weights
        assert mine.train(r, 1) == 1, "training goes on"
        assert r.steps == 5
        assert mine.weights != weights
    assert state(home)["answers"][-1]["outcome"] == "refused"
    assert "cannot be loaded" in state(home)["answers"][-1]["message"]
    make_hostile(folder / "step-5", mark)
    other = Setting(seed=2)
    with pytest.raises(RuntimeFault, match="step-5 cannot be loaded") as fault:
        other.run()
    assert fault.value.code == "foreign"
    shutil.rmtree(folder / "step-5")
    with other.run() as r:
        assert r.resumed == "second", "the run is free again, and goes on from the one before"
    assert not mark.exists()


def test_what_was_lost_before_the_first_checkpoint_counts_too(home: Path) -> None:
    folder = home / ".local/share/gpuspawner-runtime/checkpoints/mine"
    folder.mkdir(parents=True)
    Opened(folder).open(7, 3.5)  # as a process leaves it that was killed
    with Setting().run() as r:
        assert (r.resumed, r.steps) == (None, 0)
        assert (r.report().lost_steps, r.report().lost_seconds) == (7, 3.5)


def test_no_two_processes_train_one_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(lock, "_MOMENT", 0.5)

    folder = home / ".local/share/gpuspawner-runtime/checkpoints/mine"
    folder.mkdir(parents=True)
    with (folder / "lock").open("w") as held:
        held.write(str(os.getppid()))
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RuntimeFault, match=f"is being trained by process {os.getppid()}") as fault:
            Setting().run()
    assert fault.value.code == "in_use"
