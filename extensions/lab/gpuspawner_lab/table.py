"""A small table: plain text in a terminal, HTML in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Table:
    """Cells are text for people; whatever they hold, it is shown as text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    #: Indices of the columns that hold figures.
    right: frozenset[int] = frozenset()
    #: Sentences below the table.
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The table as plain text."""
        table = [self.columns, *self.rows] if self.rows else []
        widths = [max(len(row[column]) for row in table) for column in range(len(self.columns))] if table else []
        lines = [self.title]
        for row in table:
            cells = [
                cell.rjust(width) if column in self.right else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  " + "  ".join(cells).rstrip())
        return "\n".join(lines + [f"  {note}" for note in self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table for a notebook; colours are the page's own."""

        def cells(row: tuple[str, ...], tag: str) -> str:
            return "".join(
                f'<{tag} style="text-align:{"right" if column in self.right else "left"};'
                f'padding:1px 16px 1px 0;background:none">{escape(cell)}</{tag}>'
                for column, cell in enumerate(row)
            )

        body = "".join(f'<tr style="background:none">{cells(row, "td")}</tr>' for row in self.rows)
        head = f'<thead><tr style="background:none">{cells(self.columns, "th")}</tr></thead>' if self.rows else ""
        notes = "".join(f"<p style='margin:4px 0'>{escape(note)}</p>" for note in self.notes)
        return (
            f'<div><strong>{escape(self.title)}</strong><table style="margin:4px 0">{head}<tbody>{body}</tbody></table>'
            f"{notes}</div>"
        )
