"""What `%gpu` shows: plain text in a terminal, a small table in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from .nvml import CardReading
from .service_words import NO_CARD
from .shares import gib, session_memory, total, without_card

BAR_WIDTH = 32


@dataclass(frozen=True)
class Status:
    """The share and what the driver says now. Unknown values are None and shown as a dash."""

    session: dict[str, Any] | None
    cards: tuple[CardReading, ...] = ()
    #: Sentences about what could not be found out.
    notes: tuple[str, ...] = ()

    @property
    def used(self) -> int | None:
        """Bytes of card memory in use by this session."""
        value = total(card.memory_used_bytes for card in self.cards)
        if value is None and without_card(self.session):
            return None
        return int(value) if value is not None else (self.session or {}).get("memory_used_bytes")

    @property
    def allowed(self) -> int | None:
        """Bytes of card memory that this session may use."""
        value = total(card.memory_allowed_bytes for card in self.cards)
        return int(value) if value is not None else session_memory(self.session)

    @property
    def fraction(self) -> float | None:
        """Used of allowed, 0 to 1; after a forced shrink it stays at 1."""
        if self.used is None or not self.allowed:
            return None
        return min(1.0, self.used / self.allowed)

    def title(self) -> str:
        """Share and card in words."""
        if without_card(self.session):
            return "No card"
        session = self.session or {}
        name = ", ".join(sorted({card.name for card in self.cards if card.name}))
        name = name or ", ".join(sorted({card["name"] for card in session.get("cards", [])})) or "unknown card"
        if session.get("simulated") and "simulated" not in name:
            name += " (simulated)"
        share = str(session.get("share") or "–")
        if share == "1":
            return f"Whole GPU: {name}"
        return f"{share} GPUs: {name}" if share.isdigit() else f"GPU {share} of {name}"

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of each line."""
        session = self.session or {}
        free = None if self.used is None or self.allowed is None else max(0, self.allowed - self.used)
        loads = [f"{_or_dash(c.utilization_percent)} %" for c in self.cards]
        watts = [f"{_or_dash(c.power_watts)} W" for c in self.cards]
        heat = [f"{_or_dash(c.temperature_celsius)} °C" for c in self.cards]
        price = session.get("price_per_hour")
        cost = "–" if price is None else f"{price} {session.get('currency', '')} per hour"
        if without_card(self.session):
            return [("session", NO_CARD), ("price", cost)]
        rows = [
            ("memory", f"{gib(self.used)} of {gib(self.allowed)} GiB used, {gib(free)} GiB free"),
            ("card", " · ".join((", ".join(loads) or "–", ", ".join(watts) or "–", ", ".join(heat) or "–"))),
            ("price", cost),
            ("limits", session.get("grade") or "–"),
        ]
        options = [option for option in session.get("options", []) if not option.get("current")]
        can = [option["share"] for option in options if option.get("available")]
        if session:
            rows.append(("resize", "  ".join(f"%gpu resize {share}" for share in can) or "no other share is free"))
        return rows

    def __str__(self) -> str:
        """The whole status as plain text."""
        lines = [self.title()]
        if self.fraction is not None:
            filled = round(self.fraction * BAR_WIDTH)
            lines.append(f"  [{'#' * filled}{'.' * (BAR_WIDTH - filled)}]")
        lines += [f"  {name:<8}{value}" for name, value in self.rows()]
        lines += [f"  note    {note}" for note in self.notes]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The status for a notebook; colours come from JupyterLab's theme, with fallbacks."""
        fraction = self.fraction
        bar = ""
        if fraction is not None:
            tone = "--jp-warn-color1, #b45309" if fraction >= 0.9 else "--jp-brand-color1, #1976d2"
            bar = (
                '<div role="img" aria-label="memory in use" style="height:8px;max-width:28em;border-radius:4px;'
                'margin:6px 0;background:var(--jp-layout-color3, #ddd)"><div style="height:8px;border-radius:4px;'
                f'width:{fraction * 100:.1f}%;background:var({tone})"></div></div>'
            )
        cell = "text-align:left;vertical-align:top;padding:1px 16px 1px 0;background:none"
        rows = "".join(
            f'<tr style="background:none"><th scope="row" style="{cell};font-weight:normal;'
            f'color:var(--jp-ui-font-color2, #666)">{escape(name)}</th><td style="{cell}">{escape(value)}</td></tr>'
            for name, value in [*self.rows(), *(("note", note) for note in self.notes)]
        )
        return f'<div><strong>{escape(self.title())}</strong>{bar}<table style="margin:0">{rows}</table></div>'


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"
