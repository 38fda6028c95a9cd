"""Tables of text cells, for a terminal or as Markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.console import Console

from olla_xla.cli import document
from olla_xla.problem.text_table import text_table, wrapped

__all__ = ["Table"]

_NARROWEST = 40
"""Columns that a terminal is taken to have at least."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text under headings.

    Attributes:
      headings: one for each column; those that end in a colon are aligned left, without it.
      rows: cells, as many as headings.
      title: said above the table, or "".
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def print(self, console: Console) -> None:
        """Prints title and table, within 80 columns or as many as a wider terminal has."""
        document.add_table(self.title, self.headings, self.rows)
        width = max(console.width, _NARROWEST) if console.is_terminal else None
        parts = [wrapped(self.title, width)] if self.title else []
        parts += [text_table(self.headings, self.rows, width)] if self.rows or not parts else []
        parts.append("")
        console.print("\n".join(parts), markup=False, soft_wrap=True)

    def markdown(self) -> str:
        """As a Markdown table, with a trailing newline."""
        document.add_table(self.title, self.headings, self.rows)
        lines = [f"{self.title}\n"] if self.title else []
        lines.append(_line([h.removesuffix(":") for h in self.headings]))
        lines.append(_line(["---" if h.endswith(":") else "---:" for h in self.headings]))
        lines += [_line([cell.replace("|", r"\|") for cell in row]) for row in self.rows]
        return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
