"""Draws the papers' figures from what sweeps and benchmarks stored: a CSV and a PNG for each.

OLLA's figures 7 to 9, 11, 13 and 14, and best fit against blocks, come from a sweep's rows of mode
eager, those against XLA from modes order and overhead. A figure without rows is left out and named.
With --hardest=N the N models that took longest are planned again for progress over time, with
--again=MODEL/BATCH those named: of the order (10) and of the places (12); --progress draws such
files as they are. --sublinear and
--profile take what benchmarks sublinear and profile wrote, for the figures of Chen et al. and
Sekiyama et al., --estimates what estimate --models wrote. --packing draws packings of the blocks of
a CSV, and best fit step by step. Where a paper prints a value, it stands beside ours. Last come
means and medians over all models, and each model against XLA.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import flags

from benchmarks.driver import Flags
from benchmarks.growing_file import read_text
from benchmarks.papers.eager.estimate import from_json
from benchmarks.papers.eager.unfused import standing_graph
from benchmarks.papers.figures import benchmark_figures, curves, packings, sweep_figures
from benchmarks.papers.figures.comparisons import comparison_table, comparisons, model_table
from olla_xla import targets
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table
from olla_xla.errors import InputError
from olla_xla.place.trace import read_trace
from olla_xla.problem.graph import TensorGraph
from olla_xla.tools import models

Row = Mapping[str, str]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.names("sweep", ["sweep.csv"], "Sweeps' CSVs.")
    define.text("out", "figures", "Folder for the files.")
    define.whole(
        "hardest", 0, "Models to plan again for figures 10 and 12; about two minutes each.", least=0
    )
    define.names("again", [], "Models to plan again instead, as model/batch_size.")
    define.names("progress", [], "Of orders, of places: CSVs that --hardest wrote.")
    define.names("sublinear", [], "JSON that benchmarks sublinear wrote.")
    define.names("profile", [], "JSON that benchmarks profile wrote.")
    define.names("estimates", [], "JSON that benchmarks estimate --models wrote.")
    define.text("packing", None, "CSV of blocks whose packings are drawn.")


def run(values: flags.FlagValues) -> int:
    """Writes the files and prints the means."""
    others = (values.sublinear, values.profile, values.progress, values.estimates, values.packing)
    sweeps = [] if any(others) and not values["sweep"].present else values.sweep
    rows = [row for path in sweeps for row in sweep_figures.read_rows(path)]
    folder = Path(values.out)
    drawn = _draw_others(values, folder)
    lines, without = [], []
    sizes = sorted({int(row["batch_size"]) for row in rows})
    for figure in sweep_figures.FIGURES:
        shown = sweep_figures.series(figure, rows)
        if not shown.names:
            without.append(figure.name)
            continue
        sweep_figures.write_csv(figure, shown, folder / f"{figure.name}.csv")
        sweep_figures.write_png(figure, shown, folder / f"{figure.name}.png")
        for label in shown.values:
            found = [f(label, size) for size in sizes for f in (shown.mean, shown.median)]
            texts = ["-" if m is None else f"{m:,.1f} {figure.unit}" for m in found]
            lines.append((figure.number or "-", figure.title, label, str(len(shown.names)), *texts))
    lines += [(*line, *[""] * (2 * len(sizes) - 1)) for line in _best_fit(rows, folder)]
    if values.hardest or values.again:
        _progress(rows, values.hardest, values.again, folder)
    console = shared.console()
    if drawn:
        console.print(f"Drawn: {', '.join(drawn)}.", markup=False)
    if not rows:
        return 0
    kinds = [f"{kind}, batch {size}" for size in sizes for kind in ("mean", "median")]
    headings = ("figure", "what:", "of:", "rows", *kinds)
    Table(headings, lines, f"Files in {folder}").print(console)
    if without:
        console.print(f"No rows for {', '.join(without)}.", markup=False)
    if found := comparisons(rows):
        comparison_table(found).print(console)
        model_table(found).print(console)
    return 0


def _draw_others(values: flags.FlagValues, folder: Path) -> list[str]:
    """Draws all that comes from no sweep; the names of the files. Nothing is drawn of wrong ones.

    Raises:
      InputError: a file is not what the flag takes, or the folder cannot be made.
    """
    stored = [(path, curves.read_curves(path)) for path in values.progress]
    charts = benchmark_figures.sublinear_charts(values.sublinear) if values.sublinear else []
    charts += benchmark_figures.profile_charts(values.profile) if values.profile else []
    estimated = [row for path in values.estimates for row in from_json(read_text(path))]
    charts += benchmark_figures.estimate_charts(estimated)
    blocks = None if values.packing is None else read_trace(values.packing)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
    for chart in charts:
        benchmark_figures.write_csv(chart, folder / f"{chart.name}.csv")
        benchmark_figures.write_png(chart, folder / f"{chart.name}.png")
    for path, found in stored:
        _draw_progress(Path(path).stem, found, folder)
    drawn = [*(chart.name for chart in charts), *(Path(path).stem for path, _ in stored)]
    if fits := curves.estimated_best_fits(estimated):
        _draw_best_fit(fits, ", image networks", folder / "best_fit_time")
        drawn.append("best_fit_time")
    if blocks is None:
        return drawn
    example = packings.EXAMPLE
    packings.draw_ways(blocks, packings.ways(blocks), folder)
    packings.draw_steps(example, list(packings.best_fit_steps(example)), folder)
    return [*drawn, "packing", "best_fit_steps"]


def _best_fit(rows: Sequence[Row], folder: Path) -> list[tuple[str, ...]]:
    """The figure of profile-guided best fit; its line of the table, or none."""
    found = curves.best_fits(rows)
    if not found:
        return []
    title = _draw_best_fit(found, "", folder / "best_fit")
    proven = sum(f.optimal for f in found)
    return [("-", title, "proven optimal", str(len(found)), f"{proven} of {len(found)}")]


def _draw_best_fit(found: Sequence[curves.BestFit], of: str, path: Path) -> str:
    """Writes a CSV and a PNG; the title."""
    title = f"Best fit{of}: time against blocks (after figure 4 of Sekiyama et al. 2018)"
    curves.write_best_fit_csv(found, path.with_suffix(".csv"))
    curves.write_best_fit_png(title, found, path.with_suffix(".png"))
    return title


def _progress(rows: Sequence[Row], count: int, names: Sequence[str], folder: Path) -> None:
    """Figures 10 and 12, of the rows named, or else of those that took longest."""
    named = [curves.row_of(rows, name) for name in names]
    targets.prepare_environment("cpu")

    ordered: dict[str, tuple[TensorGraph, curves.Curve, list[int]]] = {}
    with Progress() as progress:
        for column, kind in (("order_seconds", "ordering"), ("place_seconds", "placement")):
            drawn = []
            for row in named or curves.hardest(rows, column, count):
                name = f"{row['model']}, batch {row['batch_size']}"
                progress.stage(f"{name}: {kind}")
                if name not in ordered:
                    model = models.build(
                        row["model"], batch_size=int(row["batch_size"]), optimizer=row["optimizer"]
                    )
                    graph = standing_graph(model)
                    curve, order = curves.order_curve(name, graph)
                    ordered[name] = graph, curve, order.tolist()
                graph, curve, order = ordered[name]
                placing = kind == "placement"
                drawn.append(curves.place_curve(name, graph, order) if placing else curve)
            if drawn:
                _draw_progress(f"{kind}_progress", drawn, folder)


def _draw_progress(name: str, drawn: Sequence[curves.Curve], folder: Path) -> None:
    """Writes one figure of progress; which of the two, its name says."""
    number = {"ordering_progress": "10", "placement_progress": "12"}.get(name, "")
    paper = f"OLLA, figure {number}: " if number else ""
    curves.write_curves_csv(drawn, folder / f"{name}.csv")
    title = f"{paper}{name.replace('_', ' ')}"
    curves.write_curves_png(title, drawn, folder / f"{name}.png")
