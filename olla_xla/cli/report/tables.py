"""Tables of text cells, for a terminal or as Markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from olla_xla.cli import document

__all__ = ["Table"]


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
        """Prints title and table; the title is never folded."""
        document.add_table(self.title, self.headings, self.rows)
        if self.title:
            console.print(self.title, markup=False, soft_wrap=True)
        console.print(self.rich())

    def rich(self) -> RichTable:
        """The table without its title."""
        table = RichTable(
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            show_header=any(heading.strip(":") for heading in self.headings),
        )
        for heading in self.headings:
            left = heading.endswith(":")
            table.add_column(
                heading.removesuffix(":"),
                justify="left" if left else "right",
                overflow="fold" if left else "ellipsis",
                no_wrap=not left,
            )
        for row in self.rows:
            table.add_row(*(cell.replace("[", r"\[") for cell in row))
        return table

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
