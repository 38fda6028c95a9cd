"""Traces of allocations as CSV: one block a row, `id,lower,upper,size[,alignment][,offset]`.
Columns are found by their names, in any order; MiniMalloc's older names are read as well
(`buffer_id,start,end,size`, where `end` is inclusive).
"""

import csv
import io
import os

import numpy as np
from numpy.typing import NDArray

from hlo.files import read_regular
from olla_xla.errors import InputError
from olla_xla.place.problem import PlacementProblem
from olla_xla.problem.whole_file import write_text

_COLUMNS = {
    "id": "id", "buffer": "id", "buffer_id": "id",
    "lower": "lower", "start": "lower", "begin": "lower",
    "upper": "upper", "end": "upper",
    "size": "size", "alignment": "alignment", "offset": "offset",
}  # fmt: skip
_NEEDED = ("id", "lower", "upper", "size")
_LIMIT = 2**62


def read_trace(path: str | os.PathLike[str], *, capacity: int | None = None) -> PlacementProblem:
    """Reads a placement problem from CSV; a block with an offset is pinned to it.

    Args:
      path: CSV file with a header. capacity: bytes, or None to look for the least height.

    Raises:
      InputError: the file cannot be read; a column is missing, unknown or named twice; a value is
        not a whole number, lower >= upper, a negative size, an id that stands twice. The message
        has the row (the header is row 1) and the column.
    """
    try:
        text = read_regular(path).decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        detail = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot read {path}: {detail}") from error
    if not rows:
        raise InputError(f"{path} is empty; its first row must name the columns")
    place = _header(path, rows[0])
    names: dict[str, int] = {}
    values: dict[str, list[int]] = {k: [] for k in ("lower", "upper", "size", "alignment", "fixed")}
    for number, row in enumerate(rows[1:], 2):
        if not row:
            continue
        if len(row) != len(rows[0]):
            raise InputError(f"{path}, row {number}: {len(row)} values for {len(rows[0])} columns")
        cells = {kind: (column, row[k].strip()) for kind, (k, column) in place.items()}
        column, name = cells["id"]
        if name in names:
            raise InputError(
                f"{path}, row {number}, column {column}: id {name!r} is also in row {names[name]}"
            )
        names[name] = number
        for kind, value in _numbers(f"{path}, row {number}", cells).items():
            values[kind].append(value)
    return PlacementProblem.of(
        values["lower"],
        values["upper"],
        values["size"],
        names=list(names),
        alignment=values["alignment"],
        fixed=values["fixed"],
        capacity=capacity,
    )


def _header(path: str | os.PathLike[str], header: list[str]) -> dict[str, tuple[int, str]]:
    """Finds the columns of a trace by its first row: kind ("id", "lower", "upper", "size", ...) ->
    (column's index, name). Raises InputError if one is missing, unknown or twice.
    """
    place: dict[str, tuple[int, str]] = {}
    for k, column in enumerate(header):
        column = column.strip()
        kind = _COLUMNS.get(column.lower())
        if kind is None:
            raise InputError(
                f"{path}, row 1, column {k + 1}: {column!r} is no known column; the columns are "
                "id,lower,upper,size and optionally alignment and offset"
            )
        if kind in place:
            raise InputError(
                f"{path}, row 1, column {column}: column {place[kind][1]} means the same; keep one"
            )
        place[kind] = (k, column)
    missing = [kind for kind in _NEEDED if kind not in place]
    if missing:
        raise InputError(f"{path}, row 1: column {missing[0]} is missing")
    return place


def _numbers(where: str, cells: dict[str, tuple[str, str]]) -> dict[str, int]:
    """Reads the numbers of one block; alignment 1 and pinned offset -1 ("fixed") by default.
    `cells`: kind of column -> (its name, text); `where`: file and row, for messages.
    Raises InputError: a text is no whole number, or a number is out of range.
    """
    numbers = {"alignment": 1, "fixed": -1}
    for kind, (column, text) in cells.items():
        if kind == "id" or (kind == "offset" and not text):
            continue
        try:
            value = int(text)
        except ValueError as error:
            raise InputError(f"{where}, column {column}: {text!r} is not a whole number") from error
        if abs(value) > _LIMIT:
            raise InputError(f"{where}, column {column}: {text} is larger than 2**62")
        if value < (1 if kind == "alignment" else 0) and kind not in ("lower", "upper"):
            raise InputError(f"{where}, column {column}: {value} is below {kind == 'alignment':d}")
        if kind == "upper" and column.lower() == "end":
            value += 1
        numbers["fixed" if kind == "offset" else kind] = value
    if numbers["lower"] >= numbers["upper"]:
        raise InputError(
            f"{where}, column {cells['upper'][0]}: the block must end after its start at "
            f"{numbers['lower']}, but lower >= upper"
        )
    return numbers


def write_trace(
    path: str | os.PathLike[str],
    problem: PlacementProblem,
    offsets: NDArray[np.int64] | None = None,
) -> None:
    """Writes a problem, and its offsets if given, as CSV; alignments only where one is not 1; no
    pins, groups, memory spaces or capacities. InputError if the file cannot be written.
    """
    aligned = bool((problem.alignment != 1).any())
    columns = ["id", "lower", "upper", "size", *(["alignment"] if aligned else [])]
    arrays = [problem.lower, problem.upper, problem.size]
    arrays += [problem.alignment] if aligned else []
    if offsets is not None:
        columns.append("offset")
        arrays.append(offsets)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(problem.names, *(a.tolist() for a in arrays), strict=True))
    write_text(path, text.getvalue())
