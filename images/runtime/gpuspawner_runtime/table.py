"""A small table: plain text in a terminal, HTML in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Table:
    """Rows of text below a title. `right`: the columns that are set to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()

    def __str__(self) -> str:
        """The table as plain text."""
        if not self.rows:
            return self.title
        lines = [self.columns, *self.rows] if any(self.columns) else list(self.rows)
        widths = [max(len(line[at]) for line in lines) for at in range(len(self.columns))]
        text = ["  ".join(self._cell(at, cell, widths[at]) for at, cell in enumerate(line)).rstrip() for line in lines]
        return "\n".join([self.title, *("  " + line for line in text)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table for a notebook; colours come from the page's theme."""
        head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(self._html(at, cell) for at, cell in enumerate(row))}</tr>" for row in self.rows)
        caption = f"<caption style='text-align:left'>{escape(self.title)}</caption>"
        shown_head = f"<thead><tr>{head}</tr></thead>" if any(self.columns) and self.rows else ""
        return f"<table>{caption}{shown_head}<tbody>{body}</tbody></table>"

    def _cell(self, at: int, cell: str, width: int) -> str:
        return cell.rjust(width) if at in self.right else cell.ljust(width)

    def _html(self, at: int, cell: str) -> str:
        return f"<td style='text-align:{'right' if at in self.right else 'left'}'>{escape(cell)}</td>"
