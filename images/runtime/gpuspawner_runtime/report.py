"""What a run did and what it used: `Account` measures, `Report` says it, in text and in a notebook."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from fractions import Fraction
from html import escape
from typing import Any

from gpuspawner_runtime import cost, grid
from gpuspawner_runtime.cost import Cost
from gpuspawner_runtime.energy import Meter

UNKNOWN = "unknown"
_JOULES_PER_KWH = 3_600_000


@dataclass(frozen=True)
class Report:
    """Figures of a run. None is unknown, and shown as that; every figure of energy, CO2 and cost has its method."""

    run: str
    steps: int
    updates: int
    skipped: int
    lost_steps: int | None
    stall_seconds: float
    seconds: float
    checkpoints: int
    #: what was computed again after the last stop, in seconds
    lost_seconds: float | None = None
    #: what `fast` has chosen last in this process, in its words
    fast: str | None = None
    card_joules: float | None = None
    card_method: str | None = None
    processor_joules: float | None = None
    processor_method: str | None = None
    #: mean load of the cards, 0 to 1
    load: float | None = None
    card_hours: Fraction | None = None
    cost_micros: int | None = None
    currency: str | None = None
    cost_method: str | None = None
    gco2: float | None = None
    gco2_method: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON has them: null is unknown, card-hours as a decimal number."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**found, "card_hours": None if self.card_hours is None else float(self.card_hours)}

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value and method (or an empty text) of each line."""
        lost = UNKNOWN if self.lost_steps is None else _many(self.lost_steps, "step")
        if self.lost_steps and self.lost_seconds is not None:
            lost += f", {_time(self.lost_seconds)}"
        stall = _time(self.stall_seconds)
        if self.seconds > 0:
            stall += f", {self.stall_seconds / self.seconds:.2%} of the time"
        rows = [
            ("steps", f"{_many(self.steps, 'step')} in {_time(self.seconds)}", ""),
            ("updates", f"{_many(self.updates, 'update')}, {self.skipped:,} skipped", ""),
            ("lost work", lost, ""),
            ("stall", f"{stall} ({_many(self.checkpoints, 'checkpoint')})", ""),
            ("cards", _energy(self.card_joules), self.card_method or ""),
            ("processor", _energy(self.processor_joules), self.processor_method or ""),
            ("CO2", UNKNOWN if self.gco2 is None else _grams(self.gco2), self.gco2_method or ""),
            ("cost", self._cost(), self.cost_method or ""),
            ("card-hours", UNKNOWN if self.card_hours is None else f"{float(self.card_hours):.4g}", ""),
            ("load", UNKNOWN if self.load is None else f"{self.load:.0%}", "of the card, mean" if self.load else ""),
        ]
        if self.fast:
            rows.append(("step", self.fast.removeprefix("fast: "), ""))
        return rows

    def __str__(self) -> str:
        """The report as plain text."""
        rows = self.rows()
        width = max(len(name) for name, _, _ in rows) + 2
        lines = [f"  {name:<{width}}{value}" + (f"   [{method}]" if method else "") for name, value, method in rows]
        return "\n".join([f"Run {self.run}", *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The report for a notebook; colours come from the page's theme."""
        rows = "".join(
            f"<tr><th style='text-align:left;font-weight:600'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(value)}</td>"
            f"<td style='text-align:left;opacity:.7'>{escape(method)}</td></tr>"
            for name, value, method in self.rows()
        )
        caption = f"<caption style='text-align:left;font-weight:600'>Run {escape(self.run)}</caption>"
        return f"<table style='font-variant-numeric:tabular-nums'>{caption}{rows}</table>"

    def _cost(self) -> str:
        if self.cost_micros is None:
            return UNKNOWN
        return cost.money(self.cost_micros, self.currency or "")


class Account:
    """Keeps account of a run from `start` to `stop`: energy, cost, CO2, load."""

    def __init__(self, meter: Meter | None = None, zone: str | None = None) -> None:
        """`zone`: a country's code or gCO2 for a kWh; by default the variable GPUSPAWNER_GRID."""
        self._meter = meter or Meter()
        self._zone = zone
        self._started = self._stopped = None  # type: datetime | None

    def start(self) -> Account:
        """Begin. Twice is once."""
        if self._started is None:
            self._started = datetime.now(UTC)
            self._meter.start()
        return self

    def stop(self) -> None:
        """End; the figures stay as they are."""
        if self._started is not None and self._stopped is None:
            self._meter.stop()
            self._stopped = datetime.now(UTC)

    def figures(self) -> dict[str, Any]:
        """The fields of a `Report` that this account knows. Asks the hub's service, if there is one."""
        if self._started is None:
            return {}
        energy = self._meter.read()
        paid: Cost | None = cost.between(self._started, self._stopped or datetime.now(UTC))
        intensity = grid.intensity(self._zone)
        session = cost.session() if energy.card_method is not None else None
        simulated = session is not None and session.get("simulated") is True
        found: dict[str, Any] = {
            "card_joules": energy.card_joules,
            "card_method": f"simulated; {energy.card_method}" if simulated else energy.card_method,
            "processor_joules": energy.processor_joules,
            "processor_method": energy.processor_method,
            "load": energy.load,
            "card_hours": paid.card_hours if paid else energy.card_hours,
        }
        if paid:
            found |= {"cost_micros": paid.micros, "currency": paid.currency, "cost_method": paid.method}
        # only if the run has used `fast` already, since it needs PyTorch
        choices = sys.modules.get("gpuspawner_runtime.choices")
        if choices is not None and choices.latest is not None:
            found["fast"] = choices.latest.why
        joules = energy.joules
        if joules is not None and intensity is not None:
            known = ["simulated cards" if simulated else "cards"] * (energy.card_joules is not None)
            known += ["processor"] * (energy.processor_joules is not None)
            found["gco2"] = joules / _JOULES_PER_KWH * intensity.grams_per_kwh
            found["gco2_method"] = f"{' and '.join(known)}; {intensity.label}"
        return found


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _energy(joules: float | None) -> str:
    if joules is None:
        return UNKNOWN
    return f"{joules:,.0f} J" if joules < 360_000 else f"{joules / _JOULES_PER_KWH:,.3g} kWh"


def _grams(grams: float) -> str:
    return f"{grams:,.3g} g" if grams < 1000 else f"{grams / 1000:,.3g} kg"
