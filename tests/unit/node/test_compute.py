"""Who may compute in which part of a card's time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from gpuspawner.node import compute as module
from gpuspawner.node.compute import LOOK_SECONDS, SELDOM_SECONDS, WHOLE, Compute, Process, Use, split, turns
from gpuspawner.node.drivers.base import DriverError, Sample
from gpuspawner.node.records import Record, Records


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


class Driver:
    """Shows what the test says: by card, percent by process."""

    def __init__(self) -> None:
        self.shown: dict[str, dict[int, int] | None] = {}
        self.read: list[str] = []
        self.newest = 1

    def samples(self, card: str) -> list[Sample]:
        self.read.append(card)
        shown = self.shown.get(card, {})
        if shown is None:
            raise DriverError("It does not say.")
        return [Sample(pid, self.newest, percent, percent > 0) for pid, percent in shown.items()]


class Looker:
    """Sessions on two cards, whose processes have the session's name's place in the alphabet as their id."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver = Driver()
        self.records = Records(folder / "agent.sqlite")
        self.seen: list[tuple[str, dict[str, tuple[int, int]], Mapping[str, Mapping[Process, int]]]] = []
        self.compute = Compute(
            self.driver,  # type: ignore[arg-type]
            self.records,
            threading.RLock(),
            lambda session: folder / session,
            lambda card, uses, by: self.seen.append((card, {use.session: (use.own, use.used) for use in uses}, by)),
        )
        monkeypatch.setattr(module.launch, "owners", self._owners)
        monkeypatch.setattr(module, "start_time", lambda pid: None if pid == 26 else 7)

    def _owners(self, folders: Iterable[Path], pids: Iterable[int]) -> dict[int, Path]:
        return {pid: folder for folder in folders for pid in pids if ord(folder.name[0]) - 96 == pid}

    def put(self, session: str, card: str, eighths: int, *, burst: bool = False) -> None:
        self.records.put(Record(session, session, (card,), eighths, "live", True, 5.0, burst=burst))


def test_every_card_is_read_once_and_all_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Looker(tmp_path, monkeypatch)
    one.put("a", "GPU-1", 1)
    assert one.compute.look() is None, "nobody else is there"
    assert one.driver.read == []
    one.put("b", "GPU-1", 4, burst=True)
    one.put("c", "GPU-2", 8)
    one.driver.shown = {"GPU-1": {1: 40, 2: 30, 3: 5, 99: 20}, "GPU-2": {3: 90}}
    assert one.compute.look() == LOOK_SECONDS
    assert one.driver.read == ["GPU-1", "GPU-2"]
    assert one.seen == [
        # `c` holds nothing of the first card, and 99 is of no session
        (
            "GPU-1",
            {"a": (125, 400), "b": (500, 300), "c": (0, 50)},
            {"a": {(1, 7): 40}, "b": {(2, 7): 30}, "c": {(3, 7): 5}},
        ),
        ("GPU-2", {"c": (1000, 900)}, {"c": {(3, 7): 90}}),
    ]
    one.compute.look()
    assert len(one.seen) == 2, "nothing new"
    one.records.close()


def test_looks_are_seldom_while_nobody_meets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Looker(tmp_path, monkeypatch)
    one.put("a", "GPU-1", 1)
    one.put("b", "GPU-1", 4)
    one.driver.shown = {"GPU-1": {2: 50}}
    assert one.compute.look() == SELDOM_SECONDS
    one.driver.shown = {"GPU-1": {1: 10, 2: 50}}
    one.driver.newest = 2
    assert one.compute.look() == LOOK_SECONDS
    one.driver.shown = {"GPU-1": None}
    assert one.compute.look() == SELDOM_SECONDS
    assert len(one.seen) == 2, "what the driver does not say is not told"
    one.records.close()


def test_a_process_that_has_just_ended_is_nobody_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Looker(tmp_path, monkeypatch)
    one.put("a", "GPU-1", 4)
    one.put("z", "GPU-1", 4)
    one.driver.shown = {"GPU-1": {1: 10, 26: 50}}
    one.compute.look()
    assert one.seen == [("GPU-1", {"a": (500, 100), "z": (500, 500)}, {"a": {(1, 7): 10}, "z": {}})]
    one.records.close()
