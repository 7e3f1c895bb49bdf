"""Grams of CO2 for a kilowatt-hour of electricity, by country: yearly averages, with source and year.

Lifecycle emissions of generation. Source: Ember, Yearly Electricity Data, and Energy Institute, Statistical Review of
World Energy (2024), as "Carbon intensity of electricity generation, 2023" at Our World in Data, and for Norway and
the world Ember's figures for 2023. Countries that are not here are unknown: give the figure of your own supplier.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

VARIABLE = "GPUSPAWNER_GRID"
_SOURCE, _YEAR = "Ember and Energy Institute", 2023
#: ISO 3166 alpha-2 code, and `WORLD`: gCO2 for a kWh, 2023
_GRAMS = {
    "AR": 354, "AT": 111, "AU": 549, "BA": 600, "BD": 691, "BE": 138, "BG": 335, "BO": 532, "BR": 98, "CA": 170,
    "CL": 291, "CN": 582, "CO": 260, "CR": 53, "CY": 534, "CZ": 450, "DE": 381, "DK": 152, "EC": 150, "EE": 417,
    "EG": 570, "FI": 79, "FR": 56, "GE": 168, "GR": 337, "HR": 205, "HU": 204, "IE": 291, "IN": 713, "IR": 655,
    "NO": 30, "SV": 271, "WORLD": 481,
}  # fmt: skip


@dataclass(frozen=True)
class Intensity:
    """Grams of CO2 for a kWh, and where the figure is from."""

    grams_per_kwh: float
    label: str


def zones() -> tuple[str, ...]:
    """The codes that are known."""
    return tuple(_GRAMS)


def intensity(zone: str | None = None) -> Intensity | None:
    """The figure for a country's code, or for a number, which is taken as grams for a kWh; None if it is not known.

    Without `zone` the variable GPUSPAWNER_GRID is asked. Where the machine stands is never guessed.
    """
    given = (zone if zone is not None else os.environ.get(VARIABLE, "")).strip().upper()
    if given in _GRAMS:
        return Intensity(float(_GRAMS[given]), f"{given}, {_YEAR} average, {_SOURCE}")
    try:
        grams = float(given)
    except ValueError:
        return None
    return Intensity(grams, f"{grams:g} gCO2/kWh, as given") if 0 <= grams <= 5000 else None
