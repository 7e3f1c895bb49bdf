"""Traces and what a replay says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuspawner.cli import main
from gpuspawner.errors import InvalidInput
from gpuspawner.queue import FIFO, STANDARD, STRICT
from gpuspawner.queue.command import calibration, duration
from gpuspawner.queue.replay import replay
from gpuspawner.queue.trace import parse, read, synthetic

HEAD = '{"trace": 1, "cards": [{"model": "h100-80gb", "count": 1}]}'


def job(**changes: object) -> str:
    return json.dumps(
        {"session": "a", "user": "ann", "kind": "batch", "share": "1", "at": 0, "seconds": 100, **changes}
    )


def test_what_is_written_is_read() -> None:
    trace = synthetic(50, 12, seed=5)
    assert parse(trace.lines()) == trace
    assert sum(each.count for each in trace.cards) == len(trace.rooms()) == 12


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "trace: it is empty"),
        (["nonsense"], "line 1, the line"),
        (['{"trace": 2, "cards": [{}]}'], "line 1, trace: 2"),
        (['{"trace": 1, "cards": []}'], "line 1, cards"),
        (['{"trace": 1, "cards": [{"count": 0}]}'], "line 1, cards.0.count: 0"),
        (['{"trace": 1, "cards": [{}, {}]}'], "line 1, cards"),
        ([HEAD, job(share="1/3")], "line 2, share: '1/3'"),
        ([HEAD, job(share="none")], "line 2, share"),
        ([HEAD, "", job(kind="urgent")], "line 3, kind: 'urgent'"),
        ([HEAD, job(seconds=-1)], "line 2, seconds: -1"),
        ([HEAD, job(at=True)], "line 2, at: True"),
        ([HEAD, '{"session": "a", "at": NaN}'], "line 2, "),
        ([HEAD, job(extra="x" * 1000)], "line 2, extra: 'xxx"),
        ([HEAD, job(at=10, deadline=5)], "line 2, the line"),
        ([HEAD, job(), job()], "line 3, session: 'a'"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_field(lines: list[str], said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(lines)
    assert caught.value.message.startswith(said)
    assert len(caught.value.message) < 400


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("none", "bytes", "."):
        with pytest.raises(InvalidInput, match="cannot be read"):
            read(tmp_path / name)


def test_the_figures_of_a_replay_are_right() -> None:
    """One card; two that want all of it at 0 and run 100 s each, a third that wants an eighth at 150 for 50 s."""
    lines = [
        HEAD,
        job(deadline=100),
        job(session="b", deadline=150),
        job(session="c", kind="inference-urgent", share="1/8", at=150, seconds=50),
    ]
    result = replay(parse(lines), FIFO)
    assert (result.waits["batch"].median, result.waits["batch"].longest) == (0, 100)
    assert (result.waits["inference-urgent"].longest, result.waits["interactive"].longest) == (50, None)
    assert (result.deadlines, result.missed) == (2, 1)
    assert (result.utilisation, result.idle_eighth_seconds) == (1.0, 0.0)
    assert (result.shrinks, result.parks, result.seconds) == (0, 0, 250)
    ours = replay(parse(lines), STANDARD)
    # b has 50 s left at 150, runs at half speed for 50 s, has 25 s left then
    assert (ours.waits["inference-urgent"].longest, ours.shrinks, ours.seconds) == (0, 1, 225)


def test_coming_back_costs_what_it_is_said_to_cost() -> None:
    lines = [HEAD, job(), job(session="b", kind="interactive", at=10, seconds=20)]
    result = replay(parse(lines), STANDARD, return_seconds=7)
    assert result.shrinks == 0, "an interactive session wants all of the card"
    # told at 10, parked at 25, back at 45 with 75 s of work and 7 s of coming back
    assert (result.parks, result.returns, result.seconds) == (1, 7, 127)


def test_who_is_told_a_wait_is_told_what_happens_where_everything_is_known() -> None:
    lines = [HEAD, *(job(session=f"j{n}", at=n, seconds=100, told=100) for n in range(5))]
    result = replay(parse(lines), STRICT, ask_every=1)
    assert [round(said or 0) for said, _ in result.expected] == [99, 198, 297, 396]
    assert all(said == pytest.approx(did) for said, did in result.expected)
    assert calibration(result) == {"in_time": 1.0, "within_twice": 1.0}


def test_who_can_never_start_ends_no_replay() -> None:
    result = replay(parse([HEAD, job(share="2", deadline=10**6), job(session="b")]), STANDARD)
    assert (result.waits["batch"].count, result.missed) == (1, 1)


def test_the_command_compares_and_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queue", "synthetic", "--jobs", "30", "--cards", "2", "--seed", "3"]) == 0
    file = tmp_path / "trace.jsonl"
    file.write_text(capsys.readouterr().out)
    assert main(["queue", "replay", str(file)]) == 0
    told = capsys.readouterr().out
    assert "standard" in told.splitlines()[0]
    assert "wait, inference-urgent" in told
    assert main(["queue", "replay", str(file), "--json", "--policy", "fifo"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["policy"], result["jobs"], result["shrinks"]) == ("fifo", 30, 0)
    file.write_text("{}")
    assert main(["queue", "replay", str(file)]) == 2
    assert "line 1, trace" in capsys.readouterr().err
    assert main(["queue", "synthetic", "--jobs", "0"]) == 2
    assert "jobs: 0 is not allowed. Allowed: 1 to 1000000." in capsys.readouterr().err


def test_durations_are_for_people() -> None:
    assert [duration(each) for each in (0, 59, 120, 7200, 200000)] == ["0 s", "59 s", "2 min", "2.0 h", "2.3 d"]
