"""Tables of text cells, for a terminal or as Markdown; and numbers as text. A MB is 2**20 bytes."""

import dataclasses
from collections.abc import Sequence

from rich.console import Console

from olla_xla.analysis.text_table import megabytes as megabytes
from olla_xla.analysis.text_table import text_table, wrapped
from olla_xla.cli import document

_NARROWEST = 40
"""Characters a line: a narrower terminal is treated as if it were this wide."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text under headings.

    Attributes:
      headings: one for each column. A column whose heading ends in a colon is aligned left, and
        the colon is not printed; other columns are aligned right.
      rows: each has as many cells as there are headings.
      title: printed above the table, or "".
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def print(self, console: Console) -> None:
        """Prints title and table; on a terminal wrapped to its width.
        The table is also added to the document of `--json`.
        """
        document.add_table(self.title, self.headings, self.rows)
        width = max(console.width, _NARROWEST) if console.is_terminal else None
        parts = [wrapped(self.title, width)] if self.title else []
        parts += [text_table(self.headings, self.rows, width)] if self.rows or not parts else []
        parts.append("")
        console.print("\n".join(parts), markup=False, soft_wrap=True)

    def markdown(self) -> str:
        """Returns the table as Markdown, with a newline last; adds it to `--json` documents."""
        document.add_table(self.title, self.headings, self.rows)
        lines = [f"{self.title}\n"] if self.title else []
        lines.append(_line([h.removesuffix(":") for h in self.headings]))
        lines.append(_line(["---" if h.endswith(":") else "---:" for h in self.headings]))
        lines += [_line([cell.replace("|", r"\|") for cell in row]) for row in self.rows]
        return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def change(share: float, digits: int = 1) -> str:
    """Formats a relative change in percent, with sign and `digits` decimals: 0.25 -> "+25.0 %"."""
    text = percent(share, digits)
    return f"+{text} %" if float(text) > 0 else f"{text} %"


def more(size: float, other: float) -> float:
    """Returns size / other - 1, the fraction by which a size is larger; 0.0 if other is 0."""
    return size / other - 1 if other else 0.0


def percent(share: float | None, digits: int = 2) -> str:
    """Formats a fraction in percent, with `digits` decimals: 0.005 -> "0.50"; "-" for None."""
    if share is None:
        return "-"
    text = f"{100 * share:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def seconds(value: float | None) -> str:
    """Formats seconds with one decimal: "12.3"; "-" for None."""
    return "-" if value is None else f"{value:,.1f}"
