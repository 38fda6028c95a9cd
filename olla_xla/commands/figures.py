"""Draws the OLLA paper's figures from the rows of a sweep: a CSV and a PNG for each.

Figures 7, 8, 9, 11 and 13 come from rows of mode eager, those against XLA from modes order and
overhead. A figure without rows is left out and named.
"""

from __future__ import annotations

from pathlib import Path

from absl import flags

from olla_xla.commands import shared
from olla_xla.errors import InputError

__all__ = ["define_flags", "run"]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("sweep", "sweep.csv", "The sweep's CSV.", flag_values=values)
    flags.DEFINE_string("out", "figures", "Folder for the files.", flag_values=values)


def run(values: flags.FlagValues) -> int:
    """Writes the files and prints the means."""
    from olla_xla import figures
    from olla_xla.report.tables import Table

    rows = figures.read_rows(values.sweep)
    folder = Path(values.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
    lines, without = [], []
    sizes = sorted({int(row["batch_size"]) for row in rows})
    for figure in figures.FIGURES:
        shown = figures.series(figure, rows)
        if not shown.names:
            without.append(figure.name)
            continue
        figures.write_csv(figure, shown, folder / f"{figure.name}.csv")
        figures.write_png(figure, shown, folder / f"{figure.name}.png")
        for label in shown.values:
            means = [shown.mean(label, size) for size in sizes]
            texts = ["-" if m is None else f"{m:.1f} {figure.unit}" for m in means]
            lines.append((figure.number or "-", figure.title, label, str(len(shown.names)), *texts))
    console = shared.console()
    headings = ("figure", "what:", "of:", "rows", *(f"mean, batch {size}" for size in sizes))
    Table(headings, lines, f"Files in {folder}").print(console)
    if without:
        console.print(f"No rows for {', '.join(without)}.", markup=False)
    return 0
