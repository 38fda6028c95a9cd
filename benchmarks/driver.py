"""What the commands have in common: flags, cases one after the other, tables, files of rows."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from olla_xla.cli import files
from olla_xla.cli import flags as flags_of_commands
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table
from olla_xla.errors import InputError, OllaError
from olla_xla.problem.whole_file import write_text


class Flags(flags_of_commands.Flags):
    """Flags that several commands have."""

    def out(self) -> None:
        """--out."""
        self.text("out", None, "JSON file to write.")

    def cases(self, default: str = "all by default") -> None:
        """--cases, for `parse_cases`."""
        self.names("cases", None, f"model/batch_size/optimizer/target, several; {default}.")


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      heading: as in `Table`. value: a field of the row, or what is made of the row.
      shown: the value as text; a value None is "-".
    """

    heading: str
    value: str | Callable[[Any], Any]
    shown: Callable[[Any], str] = str


def count(number: int) -> str:
    """12345 -> "12,345"."""
    return f"{number:,}"


def fixed(digits: int, scale: float = 1.0) -> Callable[[float], str]:
    """Shows numbers with so many digits behind the point, multiplied by `scale`."""
    return lambda number: f"{scale * number:,.{digits}f}"


def table_of(rows: Iterable[Any], columns: Sequence[Column], title: str = "") -> Table:
    """A line for each row."""

    def cell(row: Any, column: Column) -> str:
        value = column.value
        found = getattr(row, value) if isinstance(value, str) else value(row)
        return "-" if found is None else column.shown(found)

    lines = [tuple(cell(row, column) for column in columns) for row in rows]
    return Table([column.heading for column in columns], lines, title)


def known(flag: str, given: Sequence[str], names: Collection[str]) -> list[str]:
    """The values of a flag. Raises InputError, which names all, if one is none of `names`."""
    if unknown := [name for name in given if name not in names]:
        raise InputError(f"--{flag}: {unknown[0]!r} is not known; use {', '.join(names)}")
    return list(given)


def whole_numbers(flag: str, given: Sequence[str], least: int = 1) -> list[int]:
    """The values of a flag as integers. Raises InputError if one is none, or below `least`."""
    for text in given:
        if not text.isdecimal() or int(text) < least:
            raise InputError(f"--{flag}: {text!r} is no number of {least} or more; give 64,128")
    return [int(text) for text in given]


def write_json(path: str | None, found: Any) -> None:
    """Writes a file of --out, rows as objects. Raises InputError if that fails."""
    if path is not None:
        text = json.dumps(found, indent=1, default=dataclasses.asdict)
        write_text(path, f"{text}\n")


def measured[Item, Row](
    items: Sequence[Item],
    measure: Callable[[Item, Progress], Row],
    *,
    name: Callable[[Item], str] = str,
    said: Callable[[Row], str] | None = None,
    out: str | None = None,
    done: Callable[[list[Row]], None] | None = None,
) -> tuple[list[Row], int]:
    """Measures items one after the other; one that fails is told on stderr, and left out.

    Args:
      items: of which one row is made each. measure: makes it.
      name: of an item, told before it is measured. said: a line about its row, told afterwards.
      out: the file that gets the rows so far after each item, or None.
      done: called with the rows so far after each item.

    Returns:
      (the rows, how many items failed).

    Raises:
      InputError: the file cannot be written.
    """
    files.check_writable(out)
    rows, failed = [], 0
    with Progress() as progress:
        for number, item in enumerate(items, 1):
            progress.stage(f"{name(item)} ({number} of {len(items)})")
            try:
                rows.append(measure(item, progress))
            except OllaError as error:
                failed += 1
                print(f"{name(item)}: {error}", file=sys.stderr)
                continue
            if said is not None:
                progress(f"{name(item)}: {said(rows[-1])}")
            write_json(out, rows)
            if done is not None:
                done(rows)
    return rows, failed
