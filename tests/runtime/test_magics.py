"""`%ckpt`, `%cost`, `%%gpu` in a real IPython, and what a failed cell leaves behind."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpuspawner_runtime import RuntimeFault, cost, magics, tracebacks
from gpuspawner_runtime.priority import VARIABLE, current, listeners, preemptible, priority
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shell(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("IPYTHONDIR", str(home / "ipython"))
    monkeypatch.delenv(VARIABLE, raising=False)
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    made.run_line_magic("colors", "nocolor")
    made.run_line_magic("load_ext", "gpuspawner_runtime")
    yield made
    made.history_manager.end_session()  # type: ignore[union-attr]
    InteractiveShell.clear_instance()


def write_run(home: Path, name: str, updated: str, *checkpoints: str, status: str = "running") -> Path:
    folder = home / ".local/state/gpuspawner-runtime/runs" / name
    folder.mkdir(parents=True)
    rows = [
        {"name": each, "step": number, "bytes": 3 << 20, "saved": updated, "verified": True, "pinned": not number}
        for number, each in enumerate(checkpoints)
    ]
    state = {"format": 1, "run": name, "status": status, "updated": updated, "checkpoints": rows}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def ran(shell: InteractiveShell, cell: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    shell.run_cell(cell)
    return capsys.readouterr().out


def rows(said: str) -> list[str]:
    """The lines below the head of a table."""
    lines = said.rstrip().splitlines()
    head = next(number for number, line in enumerate(lines) if line.split()[:2] == ["run", "name"])
    return lines[head + 1 :]


def test_checkpoints_are_listed_newest_first(
    shell: InteractiveShell, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no checkpoints yet" in ran(shell, "%ckpt ls", capsys)
    write_run(home, "old", "2026-01-01T12:00:00+00:00", "a")
    write_run(home, "new", "2026-01-02T12:00:00+00:00", "b", "c")
    broken = write_run(home, "broken", "2026-01-03T12:00:00+00:00", "d")
    (broken / "state.json").write_text("{")
    said = ran(shell, "%ckpt", capsys)
    assert [line.split()[:2] for line in rows(said)] == [["new", "c"], ["new", "b"], ["old", "a"]]
    assert "3.0 MiB" in said
    assert said.count("pinned") == 2
    assert [line.split()[0] for line in rows(ran(shell, "%ckpt ls old", capsys))] == ["old"]
    html = shell.run_line_magic("ckpt", "ls new")._repr_html_()
    assert html.count("<tr>") == 3


@pytest.mark.parametrize("action", ["restore", "pin", "unpin"])
def test_requests_are_left_for_the_program(
    shell: InteractiveShell, home: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    old = write_run(home, "old", "2026-01-01T12:00:00+00:00", "a", "b")
    new = write_run(home, "new", "2026-01-02T12:00:00+00:00", "b", status="ended")
    assert f"asked to {action} a" in ran(shell, f"%ckpt {action} a", capsys)
    (request,) = (old / "requests").iterdir()
    body = json.loads(request.read_text())
    assert body["id"] == request.stem
    assert {key: body[key] for key in ("format", "action", "checkpoint")} == {
        "format": 1,
        "action": action,
        "checkpoint": "a",
    }
    assert "does not run now" in ran(shell, f"%ckpt {action} b", capsys)  # the run that was written last
    assert len(list((new / "requests").iterdir())) == 1
    ran(shell, f"%ckpt {action} b old", capsys)
    assert len(list((old / "requests").iterdir())) == 2


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("restore", "takes the name of a checkpoint"),
        ("restore x", "There is no run yet"),
        ("ls nothing", "There is no run 'nothing'"),
        ("wipe", "'wipe' is not known here"),
        ("help", "%ckpt restore NAME [RUN]"),
    ],
)
def test_wrong_words_are_one_line(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], line: str, answer: str
) -> None:
    said = ran(shell, f"%ckpt {line}", capsys)
    assert answer in said
    assert "Traceback" not in said


def test_cost_without_a_hub_is_unknown(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUSPAWNER_SESSION", raising=False)
    assert "unknown: this process is in no session" in ran(shell, "%cost", capsys)
    monkeypatch.setenv("GPUSPAWNER_SESSION", "s1")
    monkeypatch.setenv("GPUSPAWNER_SERVICE_URL", "http://127.0.0.1:1/api/v1")
    assert "unknown: the GPU service does not answer" in ran(shell, "%cost", capsys)
    assert "not known here" in ran(shell, "%cost all", capsys)


def test_cost_is_what_the_ledger_says(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = {"share": "1/4", "price_per_hour": "0.50", "currency": "EUR", "created": "2026-01-01T00:00:00+00:00"}
    paid = cost.Cost(1_500_000, "EUR", cost.Fraction(3, 4), "the hub's ledger")
    monkeypatch.setattr(cost, "configured", lambda: True)
    monkeypatch.setattr(cost, "session", lambda: session)
    monkeypatch.setattr(cost, "between", lambda start, end: paid)
    said = ran(shell, "%cost", capsys)
    for part in ("share 1/4", "0.50 EUR per hour", "1.50 EUR", "0.75"):
        assert part in said
    monkeypatch.setattr(cost, "between", lambda start, end: None)
    assert "unknown" in ran(shell, "%cost", capsys)


def test_a_marked_cell_runs_as_any_other_and_is_marked_meanwhile(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[str] = []
    listeners.append(heard.append)
    shell.user_ns["current"] = current
    try:
        result = shell.run_cell("%%gpu --priority low\nfound = current()\n%time\nfound + '!'")
    finally:
        listeners.remove(heard.append)
    assert result.result == "low!"
    assert shell.user_ns["found"] == "low"
    assert current() == "normal"
    assert heard == ["low", "normal"]
    assert shell.run_cell("%%gpu --priority=low\n1;").result is None


def test_an_error_in_a_marked_cell_is_an_error_of_the_cell(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    result = shell.run_cell("%%gpu --priority low\nx = 1\nx / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    said = capsys.readouterr().out
    assert said.count("ZeroDivisionError") == 2  # IPython's heading and last line: shown once
    assert "x / 0" in said
    assert current() == "normal"


@pytest.mark.parametrize("line", ["", "--priority", "--priority urgent", "low", "--priority low now", "'"])
def test_a_wrong_mark_runs_nothing_and_says_so(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    said = ran(shell, f"%%gpu {line}\nran = 1", capsys)
    assert "The cell did not run" in said
    assert "ran" not in shell.user_ns


def test_the_labs_line_magic_and_ours_live_together(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "extensions" / "lab"))
    for name in ("gpuspawner_lab.magic", "gpuspawner_runtime", "gpuspawner_lab.magic"):
        shell.run_line_magic("reload_ext", name)
    shell.user_ns["current"] = current
    assert shell.run_cell("%%gpu --priority low\ncurrent()").result == "low"
    assert "%gpu resize SHARE" in ran(shell, "%gpu help", capsys)
    assert completed(shell, "%gpu res") == ["resize"]
    assert completed(shell, "%%gpu --priority l") == ["low"]


def completed(shell: InteractiveShell, text: str) -> list[str]:
    with provisionalcompleter():
        return [each.text for each in shell.Completer.completions(text, len(text))]


def test_tab_shows_what_may_come(shell: InteractiveShell, home: Path) -> None:
    write_run(home, "night", "2026-01-01T12:00:00+00:00", "step-1", "step-2")
    assert completed(shell, "%ckpt r") == ["restore"]
    assert completed(shell, "%ckpt ") == ["help", "ls", "pin", "restore", "unpin"]
    assert completed(shell, "%ckpt pin st") == ["step-2", "step-1"]
    assert completed(shell, "%ckpt pin step-1 n") == ["night"]
    assert completed(shell, "%ckpt ls n") == ["night"]
    assert completed(shell, "%cost ") == ["help"]
    assert completed(shell, "%%gpu --p") == ["--priority"]
    assert completed(shell, "%%gpu --priority ") == ["low", "normal", "high"]


def test_priorities_are_checked_and_inner_ones_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with priority("low"):
        assert preemptible()
        with priority("high"):
            assert current() == "high"
        assert current() == "low"
    assert not preemptible()
    with pytest.raises(RuntimeFault, match="priority is 'urgent'"), priority("urgent"):
        pass
    monkeypatch.setenv(VARIABLE, "nonsense")
    assert current() == "normal"


_FAILS = """
def inner(size):
    held = torch.ones(size)
    keep(held)
    raise {error}

def outer(size):
    mine = {{"deep": [torch.ones(size)]}}
    keep(mine["deep"][0])
    try:
        inner(size)
    except ArithmeticError as error:
        raise LookupError("outer") from error

kept = torch.ones({size})
outer({size})
"""
_MEGABYTES = 2 << 18  # float32


def failed(shell: InteractiveShell, size: int, error: str = "ZeroDivisionError('inner')") -> list[Any]:
    """Run a cell that fails with two tensors in its functions; weak references to them."""
    found: list[Any] = []
    shell.user_ns |= {"torch": torch, "keep": lambda tensor: found.append(weakref.ref(tensor))}
    shell.run_cell(_FAILS.format(size=size, error=error))
    gc.collect()
    assert len(found) == 2
    return [each() for each in found]


@pytest.mark.case("runtime-18")
def test_a_failed_cell_keeps_no_tensors(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    assert failed(shell, _MEGABYTES) == [None, None]
    said = capsys.readouterr().out
    assert "4 MiB of tensors that the traceback held are free again" in said
    assert "LookupError: outer" in said
    assert "raise ZeroDivisionError" in said  # it was shown before it was emptied
    assert shell.user_ns["kept"].shape == (_MEGABYTES,)  # the notebook's own stays
    assert sys.last_value.args == ("outer",)


@pytest.mark.case("runtime-18")
def test_out_of_memory_frees_whatever_the_size(shell: InteractiveShell) -> None:
    assert failed(shell, 4, "torch.OutOfMemoryError('no room')") == [None, None]


def test_small_tensors_stay_for_the_debugger_and_large_ones_if_wanted(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(each is not None for each in failed(shell, 4))
    monkeypatch.setenv(tracebacks.VARIABLE, "1")
    assert all(each is not None for each in failed(shell, _MEGABYTES))


def test_loading_twice_frees_and_says_it_once(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    magics.register(shell)
    failed(shell, _MEGABYTES)
    assert capsys.readouterr().out.count("are free again") == 1
