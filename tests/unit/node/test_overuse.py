"""Who is said to compute too long, with figures and a clock of the test's own, and what each policy does about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from gpuspawner.node import overuse as module
from gpuspawner.node.compute import Use
from gpuspawner.node.gate import Policy
from gpuspawner.node.offences import MOST_ENDED, REMEMBERED, TOLD_AGAIN
from gpuspawner.node.overuse import MARGIN, WINDOW, Overuse

CARD = "GPU-1"
LOOK = 0.1
OTHER, TAKER, ANNS = 9_000_001, 9_000_002, 9_000_003  # above what Linux gives out
WARN = Policy(seconds=5.0)
END = Policy(seconds=5.0, compute="end")
TAKES = {"mallory": 750, "ann": 250}  # as measured: 1/8 that goes around the shim, beside 1/2
Figures = Mapping[str, int] | Callable[[int], Mapping[str, int]]


class World:
    """`mallory` with 1/8 of CARD and `ann` with 1/2."""

    def __init__(self, policy: Policy, monkeypatch: pytest.MonkeyPatch, *, judged: bool = True) -> None:
        self.now = 1000.0
        self.eighths = {"mallory": 1, "ann": 4}
        self.allowed: dict[str, int] = {}
        self.burst = False
        self.ended: list[int] = []
        self.pids = {"mallory": {OTHER: 0.2, TAKER: 0.8}, "ann": {ANNS: 1.0}}  # parts of the session's use
        self.said: list[str] = []
        self.hopeless = False
        self.overuse = Overuse(policy, is_judged=lambda card: judged, clock=lambda: self.now)
        monkeypatch.setattr(module, "end_process", self._end)
        monkeypatch.setattr(module, "start_time", lambda pid: None if pid in self.ended else 7)

    def _end(self, pid: int, started: int) -> bool:
        assert started == 7
        self.ended.append(pid)
        return True

    def run(self, seconds: float, figures: Figures, every: float = LOOK) -> list[str]:
        """Time goes by in which the sessions use so many thousandths; what the ledger is told."""
        said = []
        for number in range(round(seconds / every)):
            self.now += every
            used = figures(number) if callable(figures) else figures
            uses = [
                Use(session, self.eighths[session], self.burst, self.allowed.get(session, own), used.get(session, 0))
                for session, own in ((each, eighths * 125) for each, eighths in self.eighths.items())
            ]
            processes = {
                session: {(pid, 7): round(part * used.get(session, 0) / 10) for pid, part in pids.items()}
                for session, pids in self.pids.items()
            }
            self.overuse.seen(CARD, uses, processes)
            verdicts = self.overuse.look({session: session for session in self.eighths})
            said += [verdict.reason for verdict in verdicts]
            self.hopeless |= any(verdict.hopeless for verdict in verdicts)
        return said

    def codes(self, session: str = "mallory") -> list[str]:
        return [notice.code for notice in self.overuse.notices(session)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    return lambda policy=WARN, **more: World(policy, monkeypatch, **more)


def test_who_takes_from_another_is_told_and_so_is_the_ledger(world: Callable[..., World]) -> None:
    one = world()
    assert one.run(0.7 * WINDOW, TAKES) == [], "not before enough is known"
    text = f"75 % of the time of card {CARD} and may use 12 %, which others lack"
    assert one.run(0.3 * WINDOW, TAKES) == [f"it uses {text}"]
    (notice,) = one.overuse.notices("mallory")
    assert (notice.code, notice.deadline) == ("over_compute", None)
    assert text in notice.message
    assert one.codes("ann") == []
    assert one.run(100, TAKES) == [], "once in a while"
    assert one.ended == []
    one.run(WINDOW, {"mallory": 125, "ann": 495})
    assert one.codes() == []
    one.run(TOLD_AGAIN, {})
    assert len(one.run(2 * WINDOW, TAKES)) == 1


def honest_long_kernels(number: int) -> dict[str, int]:
    """Kernels of 200 ms that an eighth pays for by waiting 1.4 s, as the driver's figures of 100 ms show them."""
    runs = number % 16 < 2
    return {"mallory": 1000 if runs else 0, "ann": 0 if runs else 500}


@pytest.mark.parametrize(
    ("why", "figures", "changes"),
    [
        ("its share", {"mallory": 125, "ann": 495}, {}),
        ("long kernels, paid for afterwards", honest_long_kernels, {}),
        (
            "long kernels beside one that lacks",
            lambda number: {**honest_long_kernels(number), "ann": 350},
            {},
        ),
        ("just the margin", {"mallory": 125 + MARGIN, "ann": 250}, {}),
        ("alone on the card", {"mallory": 1000}, {"eighths": {"mallory": 1}}),
        ("the other is idle", {"mallory": 1000, "ann": 0}, {}),
        ("the other computes now and then", lambda n: {"mallory": 900, "ann": 500 if n % 10 < 4 else 0}, {}),
        ("the other has what it is to have", {"mallory": 500, "ann": 495}, {}),
        ("a whole card", {"mallory": 1000, "ann": 0}, {"eighths": {"mallory": 8, "ann": 0}}),
        ("lent by burst", {"mallory": 750, "ann": 250}, {"allowed": {"mallory": 750}, "burst": True}),
        ("slices", TAKES, {"judged": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_is_none(world: Callable[..., World], why: str, figures: Figures, changes: dict[str, object]) -> None:
    one = world(END, judged=changes.get("judged", True))
    for name, value in changes.items():
        if name != "judged":
            setattr(one, name, value)
    assert one.run(5 * WINDOW, figures) == []
    assert (one.codes(), one.ended) == ([], [])


def test_burst_that_was_taken_back_is_none(world: Callable[..., World]) -> None:
    one = world(END)
    one.burst, one.allowed = True, {"mallory": 1000}
    one.run(WINDOW, {"mallory": 1000})
    one.run(0.1, {"mallory": 1000, "ann": 100})  # the next look takes it back, and the driver's figures follow
    one.allowed = {"mallory": 333}
    one.run(1, {"mallory": 1000, "ann": 100})
    assert one.run(WINDOW, {"mallory": 333, "ann": 500}) == []
    assert one.codes() == []


def test_what_the_driver_does_not_say_is_not_judged(world: Callable[..., World]) -> None:
    one = world(END)
    one.run(0.5 * WINDOW, TAKES)
    for _ in range(100):  # no figures any more
        one.now += 1
        assert one.overuse.look({"mallory": "mallory", "ann": "ann"}) == []
    assert one.run(0.7 * WINDOW, TAKES) == [], "what was before the pause counts no more"
    assert len(one.run(0.3 * WINDOW, TAKES)) == 1
    one.now += WINDOW
    assert one.overuse.look({"mallory": "mallory", "ann": "ann"}) == []
    assert one.codes() == []


def test_figures_that_are_rare_do_not_count_for_the_time_between(world: Callable[..., World]) -> None:
    one = world(END)
    assert one.run(100, TAKES, every=2.0) == []


def test_a_card_on_which_it_holds_nothing(world: Callable[..., World]) -> None:
    one = world()
    one.eighths = {"mallory": 0, "ann": 4}
    assert "may use 0 %" in one.run(WINDOW, {"mallory": 200, "ann": 300})[0]


def test_end_waits_then_ends_the_process_that_computes_most(world: Callable[..., World]) -> None:
    one = world(END)
    one.run(WINDOW, TAKES)
    (notice,) = one.overuse.notices("mallory")
    assert notice.deadline is not None
    assert f"process {TAKER}" in notice.message
    one.run(2, TAKES)
    assert one.ended == []
    said = one.run(2, TAKES)
    assert said == [f"process {TAKER} (gone) was ended: this session used 75 % of the time of card {CARD}"]
    assert one.ended == [TAKER]
    assert one.codes() == ["process_ended"]
    one.run(2 * WINDOW, {"mallory": 125, "ann": 495})
    assert one.ended == [TAKER], "the others of the session live"
    one.run(WINDOW, TAKES)
    assert one.ended == [TAKER, OTHER], "the second time there is no grace"
    one.run(REMEMBERED, {}, every=1)
    assert one.codes() == []


def test_grace_is_given_back_as_slowly_as_it_was_spent(world: Callable[..., World]) -> None:
    one = world(Policy(seconds=20.0, compute="end"))
    for _ in range(5):
        one.run(14, TAKES)
        one.run(30, {"mallory": 0, "ann": 495})
    assert one.ended == [], "longer within its share than above"
    for _ in range(5):
        one.run(14, TAKES)
        one.run(14, {"mallory": 0, "ann": 495})
    assert one.ended != []


def test_a_session_that_does_it_again_and_again_is_hopeless(world: Callable[..., World]) -> None:
    one = world(Policy(seconds=0.0, compute="end"))
    for number in range(MOST_ENDED):
        assert not one.hopeless
        one.pids["mallory"] = {9_000_100 + number: 1.0}
        one.run(WINDOW, TAKES)
    assert one.hopeless
    assert len(one.ended) == MOST_ENDED
