"""Who may compute in which part of a card's time."""

from __future__ import annotations

from gpuspawner.node.compute import WHOLE, Use, split, turns


def use(session: str, eighths: int, used: int, *, burst: bool = True, allowed: int | None = None) -> Use:
    return Use(session, eighths, burst, eighths * 125 if allowed is None else allowed, used)


def parts(*uses: Use) -> dict[str, int]:
    return {session: part for session, (part, _) in split(list(uses)).items()}


def test_turns_follow_each_other() -> None:
    assert turns([("a", 1), ("b", 4), ("c", 2)]) == {"b": (500, 0), "c": (250, 500), "a": (125, 750)}
    assert turns([("a", 8)]) == {"a": (1000, 0)}
    assert turns([]) == {}


def test_idle_parts_go_to_those_who_want_more_by_their_shares() -> None:
    assert parts(use("a", 2, 250), use("b", 4, 0)) == {"a": 1000, "b": 500}
    assert parts(use("a", 2, 250), use("b", 4, 500)) == {"a": 333, "b": 666}
    assert parts(use("a", 1, 125), use("b", 2, 250), use("c", 4, 0)) == {"a": 333, "b": 666, "c": 500}


def test_without_burst_nothing_is_lent_but_what_is_idle_can_be_borrowed() -> None:
    assert parts(use("a", 2, 250, burst=False), use("b", 4, 0, burst=False)) == {"a": 250, "b": 500}
    assert parts(use("a", 2, 250), use("b", 4, 0, burst=False)) == {"a": 1000, "b": 500}


def test_who_wants_its_part_back_has_it_and_nobody_has_less_than_its_own() -> None:
    assert parts(use("a", 2, 950, allowed=1000), use("b", 4, 480)) == {"a": 333, "b": 666}
    assert parts(use("a", 2, 950, allowed=1000), use("b", 4, 480, burst=False)) == {"a": 500, "b": 500}
    assert parts(use("a", 4, 900, allowed=1000), use("b", 4, 450, burst=False)) == {"a": 500, "b": 500}


def test_who_uses_little_keeps_that_and_some_to_grow_into() -> None:
    found = parts(use("a", 2, 250), use("b", 4, 100))
    assert found == {"a": WHOLE - (100 + 25 + 30), "b": 500}


def test_turns_of_those_who_compute_do_not_overlap() -> None:
    found = split([use("a", 1, 125), use("b", 2, 250), use("c", 4, 0)])
    assert found["b"][1] + found["b"][0] <= found["a"][1]
    assert sum(found[each][0] for each in "ab") <= WHOLE
