"""One decision at a time: who starts, who gives way, who is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuspawner.errors import Conflict, InvalidInput, NotFound
from gpuspawner.queue import (
    FIFO,
    NO_RESIZE,
    STANDARD,
    STRICT,
    Board,
    CardRoom,
    ClassRules,
    Grow,
    Notice,
    Park,
    Rules,
    Shrink,
    Start,
    Waiting,
    Withdraw,
    decide,
    expected_wait,
)
from gpuspawner.share import GPUShare


def board(cards: int = 1, node_size: int = 8) -> Board:
    return Board(CardRoom(f"c{number}", "h100-80gb", f"n{number // node_size}") for number in range(cards))


def ask(to: Board, name: str, kind: str, share: str = "1", since: float = 0.0, **kwargs: object) -> Waiting:
    asked = Waiting(name, str(kwargs.pop("user", name)), kind, GPUShare.parse(share), since, **kwargs)  # type: ignore[arg-type]
    to.wait(asked)
    return asked


def run(on: Board, name: str, kind: str, share: str = "1", card: str = "c0", **kwargs: object) -> None:
    asked = ask(on, name, kind, share, **kwargs)
    on.start(name, (card,), asked.share.eighths_per_card, 0.0)


def test_the_more_urgent_class_goes_first() -> None:
    table = board()
    for number, kind in enumerate(("batch", "training", "interactive", "inference-urgent")):
        ask(table, kind, kind, "1/2", float(number))
    assert decide(table, STRICT, 10.0) == [Start("inference-urgent", ("c0",), 4), Start("interactive", ("c0",), 4)]


def test_the_earliest_deadline_then_who_has_used_least_then_who_came_first() -> None:
    table = board(cards=4)
    table.used("heavy", 1e6, 0.0, STANDARD)
    ask(table, "first", "training", since=1.0, user="heavy")
    ask(table, "second", "training", since=2.0, user="light")
    ask(table, "third", "training", since=3.0, user="fair")
    ask(table, "late", "training", since=9.0, user="heavy", deadline=1e5)
    started = [action.session for action in decide(table, STANDARD, 10.0)]
    assert started == ["late", "second", "third", "first"]


def test_past_use_is_forgotten_by_and_by() -> None:
    table = board()
    table.used("ann", 1000.0, 0.0, STANDARD)
    assert table.use("ann", STANDARD.half_life_seconds, STANDARD) == pytest.approx(500.0)


def test_who_waits_long_is_not_passed_for_ever_and_then_gets_on_but_takes_nothing_from_the_more_urgent() -> None:
    age = STANDARD.classes["batch"].age_seconds
    table = board()
    run(table, "runs", "training")
    ask(table, "old", "batch", since=0.0)
    ask(table, "new", "training", since=age)
    now = 2 * age
    assert decide(table, STANDARD, now) == []  # it counts as interactive now, and nothing is taken for it
    table.end("runs")
    assert decide(table, STANDARD, now + 1) == [Start("old", ("c0",), 8)]
    assert decide(table, STANDARD, now + STANDARD.safe_seconds) == []
    assert decide(table, STANDARD, now + 1 + STANDARD.safe_seconds) == [
        Notice("old", "new", now + 1 + STANDARD.safe_seconds + 15)
    ]
    assert STANDARD.rank("batch", 1e9) == 1, "age makes nobody as urgent as inference"


def test_shrinking_comes_before_stopping_and_takes_from_the_least_urgent() -> None:
    table = board()
    run(table, "lab", "interactive", "1/2")
    run(table, "night", "batch", "1/2")
    ask(table, "now", "inference-urgent", "1/4")
    assert decide(table, STANDARD, 1.0) == [Shrink("night", 2, "now"), Start("now", ("c0",), 2)]


def test_no_more_is_taken_than_is_needed_and_never_below_the_floor() -> None:
    rules = replace(STANDARD, classes={**STANDARD.classes, "batch": ClassRules(floor=2, parks=False)})
    table = board()
    run(table, "night", "batch", "1")
    ask(table, "a", "interactive", "1/2")
    assert decide(table, rules, 1.0) == [Shrink("night", 4, "a"), Start("a", ("c0",), 4)]
    ask(table, "b", "interactive", "1/2", 2.0)
    assert decide(table, rules, 2.0) == [], "two eighths can be had of it, and four are asked for"


def test_what_was_taken_is_given_back_before_the_less_urgent_start() -> None:
    table = board()
    run(table, "train", "training", "1/2")
    run(table, "lab", "interactive", "1/2")
    ask(table, "now", "inference-urgent", "1/4")
    assert decide(table, STANDARD, 1.0) == [Shrink("train", 2, "now"), Start("now", ("c0",), 2)]
    ask(table, "night", "batch", "1/4", 2.0)
    table.end("now")
    assert decide(table, STANDARD, 3.0) == [Grow("train", 4)]
    assert [*table.waiting] == ["night"]


def test_a_notice_comes_first_and_parks_when_it_has_run_out() -> None:
    table = board()
    run(table, "train", "training", "1", seconds=1000.0)
    ask(table, "lab", "interactive", "1", 10.0)
    assert decide(table, STANDARD, 10.0) == [Notice("train", "lab", 70.0)]
    assert decide(table, STANDARD, 40.0) == [], "it has been told"
    assert decide(table, STANDARD, 70.0) == [Park("train", "lab"), Start("lab", ("c0",), 8)]
    parked = table.waiting["train"]
    assert (parked.parked, parked.since, parked.seconds) == (True, 0.0, 930.0), "its place and its work are kept"
    table.end("lab")
    assert decide(table, STANDARD, 100.0) == [Start("train", ("c0",), 8)]
    assert table.running["train"].ends == pytest.approx(1030.0)


def test_a_notice_is_void_when_room_is_found_elsewhere_or_nobody_waits() -> None:
    table = board(cards=2)
    run(table, "train", "training")
    run(table, "other", "interactive", card="c1")
    ask(table, "lab", "interactive", "1", 1.0)
    assert decide(table, STANDARD, 1.0) == [Notice("train", "lab", 61.0)]
    table.end("other")
    assert decide(table, STANDARD, 2.0) == [Start("lab", ("c1",), 8), Withdraw("train")]
    ask(table, "gone", "interactive", "1", 3.0)
    assert decide(table, STANDARD, 3.0) == [Notice("train", "gone", 63.0)], "a new notice has its whole time"
    table.leave("gone")
    assert decide(table, STANDARD, 4.0) == [Withdraw("train")]


def test_a_notice_counts_for_whoever_needs_that_room() -> None:
    table = board()
    run(table, "train", "training")
    ask(table, "lab", "interactive", "1", 1.0)
    decide(table, STANDARD, 1.0)
    ask(table, "now", "inference-urgent", "1", 30.0)
    assert decide(table, NO_RESIZE, 30.0) == [], "told once, not twice"
    assert decide(table, NO_RESIZE, 61.0) == [Park("train", "now"), Start("now", ("c0",), 8)]


def test_what_waits_for_a_notice_is_not_taken_by_somebody_else() -> None:
    table = board()
    run(table, "train", "training", "1/2")
    ask(table, "lab", "interactive", "1", 1.0)
    rules = replace(NO_RESIZE, classes={**NO_RESIZE.classes, "training": ClassRules(parks=True)})
    assert decide(table, rules, 1.0) == [Notice("train", "lab", 61.0)]
    ask(table, "small", "interactive", "1/8", 2.0)
    assert decide(table, rules, 2.0) == []
    assert decide(table, rules, 61.0)[:2] == [Park("train", "lab"), Start("lab", ("c0",), 8)]


def test_nobody_gives_way_to_the_same_class() -> None:
    for kind in STANDARD.classes:
        table = board()
        run(table, "runs", kind)
        ask(table, "waits", kind)
        assert decide(table, STANDARD, 1e6) == []


def test_what_cannot_be_checkpointed_is_not_parked() -> None:
    table = board()
    run(table, "plain", "batch")
    table.running["plain"].can_park = False
    ask(table, "lab", "interactive")
    assert decide(table, NO_RESIZE, 1.0) == []


def test_several_cards_are_of_one_node() -> None:
    table = board(cards=4, node_size=2)
    run(table, "in the way", "interactive", card="c0")
    ask(table, "wide", "interactive", "2", 1.0)
    assert decide(table, STANDARD, 1.0) == [Start("wide", ("c2", "c3"), 8)]
    ask(table, "wider", "interactive", "3", 2.0)
    assert decide(table, STANDARD, 2.0) == []


def test_several_cards_are_had_by_parking_on_the_node_where_it_costs_least() -> None:
    table = board(cards=4, node_size=2)
    for number, kind in enumerate(("training", "training", "batch", "training")):
        run(table, f"r{number}", kind, card=f"c{number}")
    ask(table, "wide", "interactive", "2", 1.0)
    assert decide(table, STANDARD, 1.0) == [Notice("r2", "wide", 16.0), Notice("r3", "wide", 61.0)]
    assert decide(table, STANDARD, 16.0) == []
    assert decide(table, STANDARD, 61.0) == [Park("r2", "wide"), Park("r3", "wide"), Start("wide", ("c2", "c3"), 8)]


def test_models_are_kept_apart() -> None:
    table = Board([CardRoom("a", "a100-40gb"), CardRoom("h", "h100-80gb")])
    ask(table, "one", "interactive", "h100:1/2")
    ask(table, "two", "interactive", "a100-40gb:1", 1.0)
    ask(table, "none", "interactive", "l4:1/8", 2.0)
    assert decide(table, STANDARD, 3.0) == [Start("one", ("h",), 4), Start("two", ("a",), 8)]


def test_the_fullest_card_that_fits_is_taken() -> None:
    table = board(cards=3)
    run(table, "half", "interactive", "1/2", "c1")
    run(table, "quarter", "interactive", "1/4", "c2")
    ask(table, "new", "interactive", "1/2")
    assert decide(table, STANDARD, 1.0) == [Start("new", ("c1",), 4)]


def test_others_go_past_only_where_they_delay_nobody() -> None:
    table = board()
    run(table, "runs", "training", "1/2", seconds=100.0)
    ask(table, "whole", "training", "1", 1.0)
    ask(table, "long", "training", "1/4", 2.0, seconds=500.0)
    ask(table, "unknown", "training", "1/4", 3.0)
    ask(table, "short", "training", "1/4", 4.0, seconds=50.0)
    assert decide(table, STANDARD, 10.0) == [Start("short", ("c0",), 2)]


def test_a_card_is_kept_for_who_has_waited_long_where_nobody_knows_the_end() -> None:
    table = board()
    run(table, "runs", "training", "1/2")
    ask(table, "whole", "training", "1", 0.0)
    ask(table, "small", "training", "1/4", 1.0)
    assert decide(table, STANDARD, 2.0) == [Start("small", ("c0",), 2)]
    ask(table, "next", "training", "1/4", 3.0)
    assert decide(table, STANDARD, STANDARD.hold_seconds + 1) == []


def test_in_one_line_nobody_goes_past() -> None:
    table = board()
    run(table, "runs", "batch", "1/2")
    ask(table, "whole", "batch", "1", 1.0)
    ask(table, "now", "inference-urgent", "1/8", 2.0)
    assert decide(table, FIFO, 10.0) == []


def test_a_deadline_is_met_missed_or_unknown() -> None:
    asked = Waiting("a", "ann", "batch", GPUShare(8), 0.0, seconds=100.0, deadline=150.0)
    assert (asked.meets(50.0), asked.meets(51.0)) == (True, False)
    assert replace(asked, seconds=None).meets(0.0) is None
    assert replace(asked, deadline=None).meets(0.0) is None


def test_the_expected_wait_is_what_happens_if_nobody_else_comes() -> None:
    table = board()
    run(table, "runs", "interactive", "1", seconds=100.0)
    ask(table, "next", "interactive", "1", 1.0)
    ask(table, "third", "interactive", "1", 2.0, seconds=50.0)
    assert expected_wait(table, STANDARD, 10.0, "next", otherwise=3600.0) == pytest.approx(90.0)
    assert expected_wait(table, STANDARD, 10.0, "third", otherwise=3600.0) == pytest.approx(3690.0)
    assert ([*table.waiting], [*table.running]) == (["next", "third"], ["runs"]), "the board stays as it is"
    with pytest.raises(NotFound):
        expected_wait(table, STANDARD, 10.0, "nobody", otherwise=3600.0)


def test_a_wait_without_end_is_unknown() -> None:
    table = board()
    ask(table, "wide", "interactive", "2")
    assert expected_wait(table, STANDARD, 0.0, "wide", otherwise=3600.0) is None


def test_nobody_is_twice_on_the_board() -> None:
    table = board()
    ask(table, "a", "interactive")
    with pytest.raises(Conflict):
        ask(table, "a", "interactive")
    table.start("a", ("c0",), 8, 0.0)
    with pytest.raises(Conflict):
        ask(table, "a", "interactive")
    ask(table, "b", "interactive")
    with pytest.raises(Conflict):
        table.start("b", ("c0",), 1, 0.0)
    for act in (table.leave, table.end):
        with pytest.raises(NotFound):
            act("nobody")


@pytest.mark.parametrize(
    ("field", "value"), [("floor", 3), ("floor", 0), ("notice_seconds", -1.0), ("age_seconds", float("nan"))]
)
def test_rules_that_mean_nothing_are_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: .* is not allowed"):
        ClassRules(**{field: value})  # type: ignore[arg-type]


def test_every_class_has_rules() -> None:
    with pytest.raises(InvalidInput, match="classes"):
        Rules(classes={"batch": ClassRules()})
