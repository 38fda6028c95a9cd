"""What the papers' figures draw: every bar, line, mark and axis, as it was when last looked at."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.papers.eager.stored import from_json
from benchmarks.papers.figures import benchmark_figures, curves, sweep_figures
from tests.support.outcomes import outcome

ticker = pytest.importorskip("matplotlib.ticker")
FixedLocator, LogLocator = ticker.FixedLocator, ticker.LogLocator

PAPERS = Path(__file__).parents[2] / "docs" / "figures" / "papers"


@pytest.fixture
def canvases(monkeypatch):
    """The figures that were drawn since."""
    found = []
    for module in (sweep_figures, benchmark_figures, curves):
        monkeypatch.setattr(module, "save_png", lambda canvas, path: found.append(canvas))
    return found


def numbers(*values):
    return [f"{float(v):.6g}" for v in values]


def drawn(canvas):
    """What a reader sees, but for colours and sizes of letters."""
    (axes,) = canvas.axes
    lines = [
        (line.get_label(), line.get_linestyle(), line.get_marker(), line.get_drawstyle(),
         numbers(*line.get_xdata(), *line.get_ydata()))
        for line in axes.lines
    ]  # fmt: skip
    bars = [numbers(p.get_x(), p.get_y(), p.get_width(), p.get_height()) for p in axes.patches]
    dots = [
        (c.get_label(), numbers(*c.get_offsets().ravel(), *c.get_sizes())) for c in axes.collections
    ]
    sides = []
    for axis in (axes.xaxis, axes.yaxis):
        scale, ticks = axis.get_transform(), axis.get_major_locator()
        sides.append(
            (axis.get_label_text(), axis.get_scale(), getattr(scale, "base", 0),
             getattr(scale, "linthresh", 0), axis.get_major_formatter()(1000.0, 0),
             axis.get_minor_formatter()(1000.0, 0))
        )  # fmt: skip
        if isinstance(ticks, FixedLocator):
            sides.append((numbers(*ticks.locs), [t.get_text() for t in axis.get_ticklabels()]))
        elif isinstance(ticks, LogLocator):
            sides.append(str(ticks._subs))
    return (
        axes.get_title(), lines, bars, dots, [t.get_text() for t in axes.texts], sides,
        numbers(*canvas.get_size_inches(), *axes.margins(), *axes.get_ylim()),
        [[t.get_text() for t in legend.get_texts()] for legend in canvas.legends],
    )  # fmt: skip


def test_bars_of_sweeps(canvases):
    rows = sweep_figures.read_rows(str(PAPERS / "eager.csv"))[:3]
    other = {**rows[0], "batch_size": "32"}
    for figure in sweep_figures.FIGURES:
        shown = sweep_figures.series(figure, [*rows, other])
        if shown.names:
            sweep_figures.write_png(figure, shown, Path(figure.name))
    assert outcome(*map(drawn, canvases)) == "8e2a9db4bd5c"


@pytest.mark.parametrize(("names", "width"), [(1, 6), (40, 14)])
def test_many_bars_make_a_wide_figure(canvases, names, width):
    """0.3 inches a name and two for the axis."""
    figure = sweep_figures.FIGURES[0]
    shown = sweep_figures.Series(("name",) * names, {"label": (1.0,) * names}, (1,) * names)
    sweep_figures.write_png(figure, shown, Path("wide"))
    assert canvases[0].get_size_inches().tolist() == [width, 5]


def test_charts_of_the_other_papers(canvases):
    charts = benchmark_figures.sublinear_charts([PAPERS / "sublinear.json"])
    charts += benchmark_figures.profile_charts([PAPERS / "profile.json"])
    charts += benchmark_figures.estimate_charts(
        from_json((PAPERS / "estimates_training.json").read_text())[:2]
    )
    less = next(chart for chart in charts if chart.name == "profile_less")
    lines = {label: (-150.0, *values[1:]) for label, values in less.lines.items()}
    charts.append(dataclasses.replace(less, name="far_below", lines=lines))
    first = {label: values[:1] for label, values in less.lines.items()}
    charts.append(dataclasses.replace(less, name="one", at=less.at[:1], lines=first))
    for chart in charts:
        benchmark_figures.write_png(chart, Path(chart.name))
    assert outcome(*map(drawn, canvases)) == "24190795825f"
    boxes = [t.get_bbox_patch() for canvas in canvases for t in canvas.axes[0].texts]
    assert {box.get_linewidth() for box in boxes if box} == {0}  # values are not framed
    assert {box.get_boxstyle().pad for box in boxes if box} == {0.5 / 5}  # of letters of 5 points
    labels = [t for canvas in canvases for t in canvas.axes[0].texts if t.get_bbox_patch()]
    assert {(abs(t.xyann[0]), t.xyann[1]) for t in labels} == {(2, 0)}  # and stand beside bars


@pytest.mark.parametrize(("least", "scale"), [(-100.0, "linear"), (-100.1, "symlog")])
def test_what_is_far_below_nothing_is_drawn_shorter(canvases, least, scale):
    charts = benchmark_figures.profile_charts([PAPERS / "profile.json"])
    less = next(chart for chart in charts if chart.name == "profile_less")
    lines = {label: (least, *[5.0] * len(values[1:])) for label, values in less.lines.items()}
    benchmark_figures.write_png(dataclasses.replace(less, lines=lines), Path("less"))
    assert canvases[0].axes[0].get_xscale() == scale


def test_curves(canvases):
    points = (curves.Point(0.0, 12, "a"), curves.Point(2.0, 9, "b"))
    found = [curves.Curve("one", points, 8), curves.Curve("two", points[:1], 0)]
    curves.write_curves_png("progress", found, Path("curves"))
    mine = [
        curves.BestFit("a", 3, 0.5, 0.0), curves.BestFit("b", 40, 2.0, 0.25),
        curves.BestFit("c", 7, 1.0, 0.0, "inference"),
    ]  # fmt: skip
    curves.write_best_fit_png("by mode", mine, Path("modes"))
    curves.write_best_fit_png("of one", mine[:2], Path("one"))
    assert outcome(*map(drawn, canvases)) == "dc73ea46bbd6"
