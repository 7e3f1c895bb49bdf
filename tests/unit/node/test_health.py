"""What a driver's readings mean for a card."""

from __future__ import annotations

import pytest

from gpuspawner.node.health import FATAL_XIDS, WARNING_XIDS, Readings, assess

GOOD = Readings(
    temperature=61,
    slowdown_at=89,
    shutdown_at=92,
    memory_temperature=70,
    memory_temperature_most=95,
    power_mw=650_000,
    ecc_corrected=12,
    ecc_uncorrected=0,
    remap_pending=False,
    remap_failed=False,
    throttle_reasons=0x4,  # the power cap: how a busy card runs
)


def changed(**readings: object) -> Readings:
    return Readings(**{**GOOD.__dict__, **readings})  # type: ignore[arg-type]


def test_a_good_card_is_ok_and_one_that_tells_nothing_is_not_taken_for_bad() -> None:
    assert assess(GOOD).state == "ok"
    assert assess(GOOD).reason is None
    assert assess(Readings()).state == "ok"
    assert assess(Readings(answers=False)).state == "unknown"
    assert assess(Readings(answers=False)).usable


@pytest.mark.parametrize(
    ("readings", "state", "says"),
    [
        ({"lost": True}, "failed", "lost"),
        ({"temperature": 88}, "ok", None),
        ({"temperature": 89}, "warning", "89 °C, at which it slows down"),
        ({"temperature": 92}, "failed", "shuts itself down"),
        ({"temperature": 120, "slowdown_at": None, "shutdown_at": None}, "ok", None),
        ({"temperature": 0, "slowdown_at": 0, "shutdown_at": 0}, "ok", None),
        ({"memory_temperature": 95}, "warning", "memory is at 95 °C"),
        ({"ecc_corrected": 10**9}, "ok", None),
        ({"ecc_uncorrected": 1}, "warning", "Uncorrectable memory errors"),
        ({"remap_pending": True}, "warning", "next reset"),
        ({"retired_pending": True}, "warning", "next reset"),
        ({"remap_failed": True}, "failed", "could not be remapped"),
        ({"throttle_reasons": 0x48}, "warning", "by heat"),
        ({"throttle_reasons": 0x20}, "warning", "by heat"),
        ({"throttle_reasons": 0x88}, "warning", "power supply"),
        ({"throttle_reasons": 0x08}, "warning", "hardware"),
        ({"xids": (31, 43, 13, 45)}, "ok", None),
        ({"xids": (79,)}, "failed", "XID 79: fallen off the bus"),
        ({"xids": (63,)}, "warning", "XID 63"),
        ({"xids": (63, 48, 48), "temperature": 90}, "failed", "XID 48"),
    ],
)
def test_states(readings: dict[str, object], state: str, says: str | None) -> None:
    health = assess(changed(**readings))
    assert health.state == state
    assert health.usable == (state != "failed")
    assert health.reason is None if says is None else health.reason is not None and says in health.reason


def test_the_worst_counts_and_a_code_is_named_once() -> None:
    assert assess(changed(xids=(63, 48, 48), temperature=90)).reason == "XID 48: uncorrectable memory error."
    assert assess(changed(xids=(94, 63), temperature=90)).reason == (
        "XID 63: a memory row is being remapped; XID 94: contained memory error; 90 °C, at which it slows down (89 °C)."
    )
    assert not FATAL_XIDS.keys() & WARNING_XIDS.keys()
