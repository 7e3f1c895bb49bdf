"""Whether a card can be trusted with work: its driver's readings turned into a state and a reason. Pure.

Thresholds and their sources:

- *Temperatures*: the card's own, as its driver reports them (`nvmlDeviceGetTemperatureThreshold`: shutdown, slowdown,
  highest for memory). There are no numbers of ours, since they differ by board.
- *XID codes*: NVIDIA, "XID Errors" (docs.nvidia.com/deploy/xid-errors), which names the resolution for each. After
  `FATAL_XIDS` it asks for a reset, a reboot or another board; `WARNING_XIDS` are those of memory that the card has
  dealt with by itself. All others (13, 31, 43, 45, ...) are faults of the program and say nothing about the card.
- *Remapped rows and retired pages*: NVIDIA, "GPU Memory Error Management" (docs.nvidia.com/deploy): a row that could
  not be remapped is a reason to replace the board, a pending one asks for a reset.
- *Clocks*: those bits of `NVML_CLOCKS_EVENT_REASON_*` in nvml.h that mean protection: hardware, heat, power brake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "failed", "unknown"]

FALLEN_OFF_THE_BUS = 79
FATAL_XIDS = {
    48: "uncorrectable memory error",
    62: "internal micro-controller halt",
    64: "a memory row could not be remapped",
    74: "NVLink error",
    FALLEN_OFF_THE_BUS: "fallen off the bus",
    95: "uncontained memory error",
    119: "the card's system processor does not answer",
    120: "error of the card's system processor",
    140: "unrecovered memory error",
    154: "the driver asks for a recovery action",
}
WARNING_XIDS = {63: "a memory row is being remapped", 92: "many corrected memory errors", 94: "contained memory error"}

SW_THERMAL = 0x20
HW_SLOWDOWN = 0x08
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80


@dataclass(frozen=True)
class Readings:
    """What a driver says of a card now. None: it does not say, which is never taken for zero or for good.

    Temperatures in degrees Celsius, power in milliwatts, ECC errors since the driver was loaded. `xids`: codes reported
    since the card was last seen to come back. `throttle_reasons`: NVML's bits.
    """

    answers: bool = True
    lost: bool = False
    temperature: int | None = None
    slowdown_at: int | None = None
    shutdown_at: int | None = None
    memory_temperature: int | None = None
    memory_temperature_most: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    utilization_percent: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pending: bool | None = None
    throttle_reasons: int | None = None
    xids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Health:
    """A card's state. `reason` is one sentence for a person; None where it is ok."""

    state: State
    reason: str | None = None

    @property
    def usable(self) -> bool:
        """Whether the card may get new grants."""
        return self.state != "failed"


OK = Health("ok")
UNKNOWN = Health("unknown", "The card was not read yet.")


def assess(readings: Readings) -> Health:
    """The state of a card by what its driver says: the worst that applies, and all reasons for it."""
    if readings.lost:
        return Health("failed", "The driver has lost the card.")
    if not readings.answers:
        return Health("unknown", "The driver does not answer.")
    failed = _failures(readings)
    if failed:
        return Health("failed", _sentence(failed))
    warnings = _warnings(readings)
    if warnings:
        return Health("warning", _sentence(warnings))
    return OK


def _failures(readings: Readings) -> list[str]:
    found = [f"XID {code}: {FATAL_XIDS[code]}" for code in _once(readings.xids) if code in FATAL_XIDS]
    if readings.remap_failed:
        found.append("a memory row could not be remapped")
    if _reaches(readings.temperature, readings.shutdown_at):
        found.append(f"{readings.temperature} °C, at which it shuts itself down ({readings.shutdown_at} °C)")
    return found


def _warnings(readings: Readings) -> list[str]:
    found = [f"XID {code}: {WARNING_XIDS[code]}" for code in _once(readings.xids) if code in WARNING_XIDS]
    if readings.ecc_uncorrected:
        found.append(f"uncorrectable memory errors since the driver was loaded: {readings.ecc_uncorrected}")
    if readings.remap_pending or readings.retired_pending:
        found.append("bad memory is taken out of use at the next reset")
    if _reaches(readings.temperature, readings.slowdown_at):
        found.append(f"{readings.temperature} °C, at which it slows down ({readings.slowdown_at} °C)")
    if _reaches(readings.memory_temperature, readings.memory_temperature_most):
        found.append(
            f"its memory is at {readings.memory_temperature} °C of {readings.memory_temperature_most} °C at most"
        )
    slowed = readings.throttle_reasons or 0
    if slowed & (HW_THERMAL | SW_THERMAL):
        found.append("slowed down by heat")
    if slowed & HW_POWER_BRAKE:
        found.append("slowed down by its power supply")
    elif slowed & HW_SLOWDOWN and not slowed & HW_THERMAL:
        found.append("slowed down by its hardware")
    return found


def _reaches(value: int | None, threshold: int | None) -> bool:
    return value is not None and threshold is not None and threshold > 0 and value >= threshold


def _once(codes: tuple[int, ...]) -> list[int]:
    return sorted(set(codes))


def _sentence(reasons: list[str]) -> str:
    text = "; ".join(reasons)
    return f"{text[0].upper()}{text[1:]}."
