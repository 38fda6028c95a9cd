"""Writes figures and tables to files; the same rows give the same bytes."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from typing import Any

from olla_xla.errors import InputError
from olla_xla.problem.whole_file import written_whole


def new_canvas(width: float, height: float) -> Any:
    """A matplotlib figure of that many inches. Raises InputError if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise InputError("figures need matplotlib; pip install 'olla-xla[figures]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def save_png(canvas: Any, path: str | os.PathLike[str], dpi: int = 110) -> None:
    """Writes a figure, without its date. Raises InputError if the file cannot be written."""
    try:
        with written_whole(path) as beside:
            canvas.savefig(beside, dpi=dpi, metadata={"Software": None})
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def write_table(
    path: str | os.PathLike[str], headings: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Writes a CSV. Raises InputError if the file cannot be written."""
    try:
        with written_whole(path) as beside, open(beside, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(headings)
            writer.writerows(rows)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
