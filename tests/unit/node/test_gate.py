"""The last gate, with a driver and a clock of the test's own: what each policy does about memory past a limit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from gpuspawner.errors import InvalidInput
from gpuspawner.node import gate as module
from gpuspawner.node.drivers.base import DriverError
from gpuspawner.node.gate import UNMEASURED_CONTEXT_BYTES, Gate, Policy
from gpuspawner.node.offences import MOST_ENDED, REMEMBERED, TOLD_AGAIN
from gpuspawner.node.records import Record, Records
from gpuspawner.node.sight import Holder, Sight

GIB = 1 << 30
ALLOWED = 10 * GIB
CARD, OTHER = "GPU-1", "GPU-2"
STRICT = Policy("end", seconds=30.0, tolerance_bytes=0)


class FakeSight:
    """Shows what the test says that the driver shows."""

    def __init__(self) -> None:
        self.shown: dict[str, list[Holder] | None] = {CARD: []}

    def holders(self, card: str, records: Iterable[Record]) -> list[Holder] | None:
        return self.shown.get(card, [])


class World:
    """One live session `s` on CARD that may use ALLOWED, watched by a real gate over real records."""

    def __init__(self, folder: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch, context_bytes: int = 1) -> None:
        self.now = 1000.0
        self.sight = FakeSight()
        self.records = Records(folder / "agent.sqlite")
        self.records.put(Record("s", "ann", (CARD,), 1, "live", True, 5.0))
        self.ended: list[int] = []
        self.put_anew: list[bool] = []
        self.folder = folder
        self.policy = policy
        self.context_bytes = context_bytes
        self.gate = self.new_gate()
        monkeypatch.setattr(module, "end_process", self._end)

    def new_gate(self) -> Gate:
        """As after a restart of the node."""
        return Gate(
            self.sight,  # type: ignore[arg-type]
            self.records,
            threading.RLock(),
            self.policy,
            folder_of=lambda session: self.folder / session,
            allowed=lambda record, card: ALLOWED if card in record.cards else 0,
            context_bytes=lambda card: self.context_bytes,
            freeze=lambda record: self.put_anew.append(self.gate.frozen(record.session)),
            clock=lambda: self.now,
        )

    def _end(self, pid: int, started: int) -> bool:
        self.ended.append(pid)
        return True

    def use(self, *sizes: int | None, card: str = CARD, first: int = 900001) -> None:
        """Processes of `s` hold so many bytes each."""
        self.sight.shown[card] = [Holder(card, first + i, 7, size, "s") for i, size in enumerate(sizes)]

    def look(self) -> list[str]:
        """What the gate has to say."""
        return [verdict.reason for verdict in self.gate.look([CARD, OTHER])]

    def codes(self) -> list[str]:
        return [notice.code for notice in self.gate.notices("s")]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(policy: Policy, context_bytes: int = 1) -> World:
        made.append(World(tmp_path, policy, monkeypatch, context_bytes))
        return made[-1]

    yield make
    for each in made:
        each.records.close()


def test_warn_only_says_it(world: Callable[..., World]) -> None:
    one = world(Policy("warn", tolerance_bytes=0))
    one.use(ALLOWED + 1)
    assert one.look() == [f"it uses 10.01 GiB of card {CARD} and may use 10.00 GiB"]
    (notice,) = one.gate.notices("s")
    assert (notice.code, notice.deadline) == ("over_limit", None)
    one.now += 10_000
    one.look()
    assert (one.gate.frozen("s"), one.ended, one.put_anew) == (False, [], [])
    one.use(ALLOWED)
    assert one.look() == []
    assert one.codes() == []


def test_the_ledger_hears_of_it_once_in_a_while(world: Callable[..., World]) -> None:
    one = world(Policy("warn", tolerance_bytes=0))
    for _ in range(3):  # it comes and goes
        one.use(ALLOWED + 1)
        said = one.look()
        one.use(0)
        assert one.look() == []
    assert said == []
    one.use(ALLOWED + 1)
    one.now += TOLD_AGAIN
    assert len(one.look()) == 1


def test_freeze_stops_new_allocations_until_the_excess_is_gone(world: Callable[..., World]) -> None:
    one = world(Policy("freeze", tolerance_bytes=0))
    one.use(ALLOWED + 1)
    one.look()
    one.look()
    assert one.gate.frozen("s")
    assert one.codes() == ["over_limit", "frozen"]
    one.now += 10_000
    one.look()
    assert one.ended == []
    one.use(ALLOWED)
    one.look()
    assert not one.gate.frozen("s")
    assert one.put_anew == [True, False]  # the limits were written at each change, and only then


def test_end_waits_then_ends_as_few_as_it_takes(world: Callable[..., World]) -> None:
    one = world(STRICT)
    one.use(3 * GIB, 9 * GIB, 4 * GIB)
    one.look()
    over = one.gate.notices("s")[0]
    assert over.deadline is not None
    assert over.deadline - over.since == STRICT.seconds
    one.now += STRICT.seconds - 0.1
    one.look()
    assert one.ended == []
    assert one.gate.frozen("s")
    one.now += 0.1
    assert any("process 900002" in reason and "was ended" in reason for reason in one.look())
    one.look()  # the driver still shows it: nobody else is ended for it
    assert one.ended == [900002]
    one.use(3 * GIB, 0, 4 * GIB)
    one.look()
    assert one.codes() == ["process_ended"]
    one.use(3 * GIB, 0, 8 * GIB)
    one.look()  # the second time there is no grace
    assert one.ended == [900002, 900003]
    one.use(3 * GIB)
    one.look()
    one.now += REMEMBERED
    one.look()
    assert one.codes() == []
    one.use(ALLOWED + 1)
    one.look()  # and after an hour there is again
    assert one.ended == [900002, 900003]


def test_grace_that_was_spent_is_not_given_again(world: Callable[..., World]) -> None:
    one = world(STRICT)
    for _ in range(2):  # over for 12 seconds, then within the limit for a moment
        one.use(ALLOWED + 1)
        one.look()
        one.now += 12.0
        one.use(ALLOWED)
        one.look()
    one.use(ALLOWED + 1)
    one.look()
    one.now += 5.9
    one.look()
    assert one.ended == []
    one.now += 0.2
    one.look()
    assert one.ended == [900001]


@pytest.mark.parametrize(("user", "ends"), [("ann", True), ("bob", False)])
def test_a_session_started_anew_has_what_grace_its_user_has_left(
    world: Callable[..., World], user: str, ends: bool
) -> None:
    one = world(STRICT)
    one.use(ALLOWED + 1)
    one.look()
    one.now += 29.0
    one.look()
    one.records.remove("s")
    one.sight.shown[CARD] = []
    one.look()
    one.records.put(Record("t", user, (CARD,), 1, "live", True, 5.0))
    one.sight.shown[CARD] = [Holder(CARD, 900009, 7, ALLOWED + 1, "t")]
    one.look()
    one.now += 1.0
    one.look()
    assert one.ended == ([900009] if ends else [])


def test_a_session_that_does_it_again_and_again_is_hopeless(world: Callable[..., World]) -> None:
    one = world(Policy("end", seconds=0.0, tolerance_bytes=0))
    hopeless = []
    for number in range(MOST_ENDED):
        one.use(ALLOWED + 1, first=910000 + number)
        hopeless.append(any(verdict.hopeless for verdict in one.gate.look([CARD])))
    assert hopeless == [False] * (MOST_ENDED - 1) + [True]


@pytest.mark.parametrize(("measured", "processes", "room"), [(1, 2, 512 << 20), (0, 2, 2 * UNMEASURED_CONTEXT_BYTES)])
def test_tolerance_to_the_byte(world: Callable[..., World], measured: int, processes: int, room: int) -> None:
    tolerance = 512 << 20 if measured else 0
    one = world(Policy("warn", tolerance_bytes=tolerance), measured)
    one.use(ALLOWED, *[room // (processes - 1)] * (processes - 1))
    assert one.look() == []
    one.use(ALLOWED, *[room // (processes - 1)] * (processes - 2), room + 1)
    assert len(one.look()) == 1


def test_what_the_driver_does_not_say_is_not_judged(world: Callable[..., World]) -> None:
    one = world(Policy("end", seconds=0.0, tolerance_bytes=0))
    one.use(ALLOWED * 2, None)
    assert one.look() == []
    one.sight.shown[CARD] = None
    assert one.look() == []
    assert (one.ended, one.codes()) == ([], [])


def test_a_card_that_the_session_does_not_hold_is_no_place_to_hide(world: Callable[..., World]) -> None:
    one = world(Policy("end", seconds=0.0, tolerance_bytes=0))
    one.use(1, card=OTHER)
    assert f"of card {OTHER} and may use 0.00 GiB" in one.look()[0]
    assert one.ended == [900001]


def test_a_forced_shrink_excuses_what_is_used_and_less_as_it_falls(world: Callable[..., World]) -> None:
    one = world(Policy("end", seconds=0.0, tolerance_bytes=0))
    record = one.records.get("s")
    assert record is not None
    one.gate.excuse(record, CARD, 14 * GIB)
    one.use(14 * GIB)
    assert one.look() == []
    assert one.codes() == ["shrunk"]
    one.use(12 * GIB)
    one.gate = one.new_gate()  # it is remembered by the next node too
    assert one.look() == []
    one.use(12 * GIB + 1)
    one.look()
    assert one.ended == [900001], "it may fall, not rise"


def test_the_excuse_is_over_once_the_limit_is_kept(world: Callable[..., World]) -> None:
    one = world(Policy("end", seconds=0.0, tolerance_bytes=0))
    record = one.records.get("s")
    assert record is not None
    one.gate.excuse(record, CARD, 14 * GIB)
    one.use(ALLOWED)
    one.look()
    assert one.codes() == []
    one.use(ALLOWED + 1)
    one.look()
    assert one.ended == [900001]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("EXCESS_POLICY", "kill"),
        ("EXCESS_SECONDS", "-1"),
        ("EXCESS_SECONDS", "1.5"),
        ("EXCESS_SECONDS", "86401"),
        ("EXCESS_TOLERANCE_MIB", "lots"),
        ("COMPUTE_POLICY", "freeze"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(name: str, given: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Policy.from_env({f"GPUSPAWNER_{name}": given})
    assert refused.value.field == f"GPUSPAWNER_{name}"


def test_settings() -> None:
    assert Policy.from_env({}) == Policy("end", 30.0, 512 << 20, "warn")
    given = {"EXCESS_POLICY": "freeze", "EXCESS_SECONDS": "0", "EXCESS_TOLERANCE_MIB": "0", "COMPUTE_POLICY": "end"}
    assert Policy.from_env({f"GPUSPAWNER_{name}": value for name, value in given.items()}) == Policy(
        "freeze", 0.0, 0, "end"
    )


class Driver:
    """Answers or fails as the test says."""

    problem: str | None = None

    def used_bytes(self, card: str) -> dict[int, int | None]:
        if self.problem:
            raise DriverError(self.problem)
        return {}


def test_a_silent_driver_is_logged_once_for_each_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpuspawner.node.sight")
    driver = Driver()
    sight = Sight(driver, lambda session: tmp_path / session)  # type: ignore[arg-type]
    for problem, shown in (("It hangs.", None), ("It is lost.", None), (None, []), ("It hangs.", None)):
        driver.problem = problem
        for _ in range(3):
            assert sight.holders(CARD, []) == shown
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(" Said")[0] for text in said] == [
        "It hangs.",
        "It is lost.",
        f"the driver of card {CARD} answers again, after 6 looks without an answer",
        "It hangs.",
    ]
