"""Draws the OLLA paper's figures from the rows of sweeps: a CSV and a PNG for each.

Figures 7 to 9, 11, 13 and 14, and best fit against blocks, come from rows of mode eager, those
against XLA from modes order and overhead. A figure without rows is left out and named. With
--hardest=N the N models that took longest are planned again for progress over time: of the order
(10) and of the places (12). Last come means over all models, and each model against XLA.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import flags

from olla_xla import targets
from olla_xla.bench import models
from olla_xla.bench.eager.unfused import standing_graph
from olla_xla.bench.sweep import curves, figures
from olla_xla.bench.sweep.comparisons import comparisons
from olla_xla.cli.commands import shared
from olla_xla.cli.report.comparisons import comparison_table, model_table
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table
from olla_xla.errors import InputError

__all__ = ["define_flags", "run"]

Row = Mapping[str, str]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_list("sweep", ["sweep.csv"], "Sweeps' CSVs.", flag_values=values)
    flags.DEFINE_string("out", "figures", "Folder for the files.", flag_values=values)
    flags.DEFINE_integer(
        "hardest", 0, "Models to plan again for figures 10 and 12; about two minutes each.",
        lower_bound=0, flag_values=values,
    )  # fmt: skip


def run(values: flags.FlagValues) -> int:
    """Writes the files and prints the means."""
    rows = [row for path in values.sweep for row in figures.read_rows(path)]
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
            texts = ["-" if m is None else f"{m:,.1f} {figure.unit}" for m in means]
            lines.append((figure.number or "-", figure.title, label, str(len(shown.names)), *texts))
    lines += [(*line, *[""] * (len(sizes) - 1)) for line in _best_fit(rows, folder)]
    if values.hardest:
        _progress(rows, values.hardest, folder)
    console = shared.console()
    headings = ("figure", "what:", "of:", "rows", *(f"mean, batch {size}" for size in sizes))
    Table(headings, lines, f"Files in {folder}").print(console)
    if without:
        console.print(f"No rows for {', '.join(without)}.", markup=False)
    found = comparisons(rows)
    if found:
        comparison_table(found).print(console)
        model_table(found).print(console)
    return 0


def _best_fit(rows: Sequence[Row], folder: Path) -> list[tuple[str, ...]]:
    """The figure of profile-guided best fit; its line of the table, or none."""
    found = curves.best_fits(rows)
    if not found:
        return []
    curves.write_best_fit_csv(found, folder / "best_fit.csv")
    title = "Best fit: time against blocks"
    curves.write_best_fit_png(title, found, folder / "best_fit.png")
    proven = sum(f.optimal for f in found)
    return [("-", title, "proven optimal", str(len(found)), f"{proven} of {len(found)}")]


def _progress(rows: Sequence[Row], count: int, folder: Path) -> None:
    """Figures 10 and 12, of the rows that took longest."""
    targets.prepare_environment("cpu")

    with Progress() as progress:
        for column, kind in (("order_seconds", "ordering"), ("place_seconds", "placement")):
            drawn = []
            for row in curves.hardest(rows, column, count):
                name = f"{row['model']}, batch {row['batch_size']}"
                progress.stage(f"{name}: {kind}")
                model = models.build(
                    row["model"], batch_size=int(row["batch_size"]), optimizer=row["optimizer"]
                )
                graph = standing_graph(model)
                curve, order = curves.order_curve(name, graph)
                if kind == "placement":
                    curve = curves.place_curve(name, graph, order.tolist())
                drawn.append(curve)
            if drawn:
                number = "10" if kind == "ordering" else "12"
                title = f"Progress of the {kind} (figure {number} of the paper)"
                curves.write_curves_csv(drawn, folder / f"{kind}_progress.csv")
                curves.write_curves_png(title, drawn, folder / f"{kind}_progress.png")
