"""Pictures of replays."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuspawner.errors import InvalidInput
from gpuspawner.queue.plot import check, draw, means
from gpuspawner.queue.replay import replay
from gpuspawner.queue.rules import POLICIES
from gpuspawner.queue.trace import synthetic


def test_means_are_of_what_was_held() -> None:
    held = [(1.0, 4), (2.5, 8), (7.0, 0), (9.0, 2)]
    assert means(held, 10.0, 5) == pytest.approx([2, 7, 8, 4, 1])
    assert means([], 10.0, 2) == [0, 0]
    assert means([(1.0, 8)], 0.5, 1) == [0], "all of it after the last one came"


def test_what_was_held_adds_up_to_the_utilisation(tmp_path: Path) -> None:
    trace = synthetic(200, 8, seed=3)
    until = trace.jobs[-1].at
    results = [replay(trace, rules, whole=True) for rules in POLICIES.values()]
    for result in results:
        parts = means(result.held, until)
        assert sum(parts) / len(parts) / (8 * 8) == pytest.approx(result.utilisation)
        assert max(parts) <= 64 + 1e-6
        assert {kind: len(waits) for kind, waits in result.waited.items()} == {
            kind: waits.count for kind, waits in result.waits.items()
        }
    for name in ("replay.svg", "replay.png", "replay.pdf"):
        draw(results, 8, until, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 10_000


def test_where_no_picture_can_be_is_said_before_the_work(tmp_path: Path) -> None:
    check(tmp_path / "a.svg")
    with pytest.raises(InvalidInput, match=r"plot: 'a.gif' is not allowed. Allowed: a name that ends in .svg, .png"):
        check(tmp_path / "a.gif")
    with pytest.raises(InvalidInput, match="there is no folder"):
        check(tmp_path / "none/a.svg")
