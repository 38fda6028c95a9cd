"""Rows of cells as a table in plain text, at full width or wrapped to a screen.

With a `width` in characters, cells of text are wrapped, only between words and between the parts of
paths. Columns that still do not fit go to further tables below, each of which repeats the first
column. No line ends in spaces.
"""

import re
from collections.abc import Sequence

_GAP = 2
"""Spaces between columns."""

_BREAKS = re.compile(r"(?<=[ /])|(?<=\])(?=\[)|(?=\[')")
"""Where a cell may be wrapped; never within a shape."""


def text_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> str:
    """A table in plain text, rows under headings; no newline at the end.

    Where it is too wide, cells of left-aligned columns are wrapped. Columns that still do not fit
    follow in further tables, after an empty line, each with the first column again.

    Args:
      headings: one for each column. One that ends in a colon, which is not shown, aligns its column
        left; other columns are aligned right.
      rows: as many cells each as there are headings.
      width: characters of a line, exceeded only if two columns do not fit; None: no limit.
    """
    left = [heading.endswith(":") for heading in headings]
    names = [heading.removesuffix(":") for heading in headings]
    columns = [[name, *(row[k] for row in rows)] for k, name in enumerate(names)]
    widths = [max(map(len, column)) for column in columns]
    if width is not None and _total(widths) > width:
        widths = _narrowed(columns, widths, left, width)
    blocks = _blocks(widths, width)
    return "\n\n".join(_block(columns, widths, left, block) for block in blocks)


def megabytes(size: float | None, digits: int = 1) -> str:
    """Bytes as text in MB of 2**20, with `digits` decimals: 1572864 -> "1.5"; "-" for None."""
    if size is None:
        return "-"
    text = f"{size / 2**20:,.{digits}f}"
    return text if text.strip("-0.") else text.removeprefix("-")


def wrapped(text: str, width: int | None) -> str:
    """The text, broken between words into lines of at most `width` characters; None: unbroken."""
    return text if width is None else "\n".join(_lines(text, width))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _narrowed(
    columns: Sequence[Sequence[str]], widths: Sequence[int], left: Sequence[bool], width: int
) -> list[int]:
    """Reduces widths of left-aligned columns until a line fits `width`, or none can be narrower."""
    narrowed = list(widths)
    least = [
        max(len(piece.rstrip()) for cell in column for piece in _BREAKS.split(cell))
        if is_left
        else whole
        for column, whole, is_left in zip(columns, widths, left, strict=True)
    ]
    while _total(narrowed) > width:
        slack = [k for k in range(len(narrowed)) if narrowed[k] > least[k]]
        if not slack:
            break
        narrowed[max(slack, key=lambda k: narrowed[k])] -= 1
    return narrowed


def _blocks(widths: Sequence[int], width: int | None) -> list[list[int]]:
    """Columns (numbers) of each table when too wide a table is split; column 0 is in each."""
    blocks: list[list[int]] = [[]]
    for k in range(len(widths)):
        more = [*blocks[-1], k]
        if width is not None and len(more) > 2 and _total([widths[j] for j in more]) > width:
            blocks.append([0, k])
        else:
            blocks[-1] = more
    return blocks


def _block(
    columns: Sequence[Sequence[str]],
    widths: Sequence[int],
    left: Sequence[bool],
    block: Sequence[int],
) -> str:
    lines = []
    for number in range(len(columns[block[0]])):
        cells = [_lines(columns[k][number], widths[k]) for k in block]
        for line in range(max(map(len, cells))):
            parts = [
                _padded(cell[line] if line < len(cell) else "", widths[k], left[k])
                for cell, k in zip(cells, block, strict=True)
            ]
            lines.append((" " * _GAP).join(parts).rstrip())
        if not number:
            if not any(lines):
                lines = []  # no column has a name
            else:
                lines.append((" " * _GAP).join("-" * widths[k] for k in block))
    return "\n".join(lines)


def _padded(text: str, width: int, left: bool) -> str:
    return f"{text:<{width}}" if left else f"{text:>{width}}"


def _lines(cell: str, width: int) -> list[str]:
    """Breaks a cell into lines of at most `width` characters, except for pieces that are longer."""
    if len(cell) <= width:
        return [cell]
    lines = [""]
    for piece in _BREAKS.split(cell):
        if lines[-1] and len(f"{lines[-1]}{piece}".rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.strip() for line in lines]
