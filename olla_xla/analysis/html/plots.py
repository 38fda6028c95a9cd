"""The report's plots: memory over the schedule, and address by time."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.models import (
    BoxZoomTool,
    Column,
    ColumnDataSource,
    CustomJS,
    HoverTool,
    PanTool,
    Range1d,
    ResetTool,
    Span,
    TapTool,
    WheelZoomTool,
)
from bokeh.plotting import figure
from numpy.typing import NDArray

from olla_xla.analysis.analysis import Analysis
from olla_xla.analysis.category import COLORS, Category
from olla_xla.analysis.memory_view import MemoryView

MEGABYTE = 2**20
_SAMPLES = 1500
"""Steps drawn of a schedule, at most; of each run of steps the one with the most memory is."""
_MANY = 3000
"""Tensors from which on rectangles have no outline: there would be little else to see."""
_GREY = "#808590"
_ZOOMS = "ctrl"
"""Keys to hold for the wheel to zoom; else it scrolls the page."""


def sampled(view: MemoryView) -> np.ndarray:
    """Step numbers to draw, int64, ascending, at most 1500; each is the fullest of its range."""
    steps, run = view.steps, -(-view.steps // _SAMPLES)
    in_use = _in_use(view)
    if run <= 1:
        return np.arange(steps)
    return np.array([k + int(in_use[k : k + run].argmax()) for k in range(0, steps, run)])


def plots(analysis: Analysis) -> Column:
    """Bokeh plots of memory and addresses over time for each order; the page shows one order."""
    parts: list[Any] = []
    top = max(view.total_bytes for view in analysis.views) / MEGABYTE
    for number, view in enumerate(analysis.views):
        steps = Range1d(start=0, end=max(view.steps, 1), bounds="auto", name=f"steps-{number}")
        parts.append(_timeline(analysis, number, steps, top))
        parts.append(_addresses(view, number, steps))
    return Column(*parts, sizing_mode="stretch_width")


def _figure(name: str, steps: Range1d, height: int, label: str, **options: Any) -> Any:
    plot = figure(
        name=name,
        height=height,
        x_range=steps,
        sizing_mode="stretch_width",
        toolbar_location="above",
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_color=None,
        x_axis_label="step of the schedule",
        y_axis_label=label,
        tools=[],
        **options,
    )
    for axis in (*plot.xaxis, *plot.yaxis):
        axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = _GREY
        axis.axis_label_text_color = axis.major_label_text_color = _GREY
    plot.grid.grid_line_color = _GREY
    plot.grid.grid_line_alpha = 0.25
    return plot


def _timeline(analysis: Analysis, number: int, steps: Range1d, top: float) -> Any:
    """Memory in use at each step, stacked by category, with the other order's and the bounds."""
    view = analysis.views[number]
    plot = _figure(
        f"timeline-{number}", steps, 300, "MB in use", y_range=Range1d(start=0, end=1.06 * top)
    )
    wheel = WheelZoomTool(dimensions="width", modifiers=_ZOOMS)
    plot.add_tools(PanTool(dimensions="width"), wheel, BoxZoomTool(dimensions="width"), ResetTool())
    plot.toolbar.active_scroll = wheel
    at = sampled(view)
    edges = np.append(at, view.steps).astype(np.float32)
    edges[0] = 0
    below = np.zeros(len(edges))
    for category, line in view.timeline.items():
        height = line[at] / MEGABYTE
        above = below + np.append(height, height[-1:])
        source = ColumnDataSource(
            {"x": edges, "low": below.astype(np.float32), "high": above.astype(np.float32)}
        )
        plot.varea_step(
            "x", "low", "high", source=source, step_mode="after", color=COLORS[category],
            fill_alpha=0.9,
        )  # fmt: skip
        below = above
    for k, other in enumerate(analysis.views):
        _outline(plot, other, dashed=k != number)
    for size, dash in ((view.total_bytes, "solid"), (analysis.lower_bound_bytes, "dotted")):
        plot.add_layout(
            Span(location=size / MEGABYTE, dimension="width", line_color=_GREY, line_dash=dash)
        )
    plot.add_layout(
        Span(location=view.step + 0.5, dimension="height", line_color="#d33", line_dash="dashed")
    )
    plot.js_on_event("tap", CustomJS(code=f"olla.step({number}, cb_obj.x)"))
    return plot


def _in_use(view: MemoryView) -> NDArray[np.int64]:
    """Bytes in use at each step; a step may take nothing at all."""
    return np.sum([np.zeros(view.steps, np.int64), *view.timeline.values()], axis=0)


def _outline(plot: Any, view: MemoryView, *, dashed: bool) -> None:
    """The line of all memory in use of an order."""
    at = sampled(view)
    total = _in_use(view)[at] / MEGABYTE
    source = ColumnDataSource({"x": at.astype(np.float32), "total": total.astype(np.float32)})
    plot.step(
        "x", "total", source=source, mode="after", line_color="#d33" if dashed else _GREY,
        line_dash="dashed" if dashed else "solid", line_width=1.2,
    )  # fmt: skip


def _addresses(view: MemoryView, number: int, steps: Range1d) -> Any:
    """Every tensor as a rectangle: where in memory it lies, and from when to when."""
    memory = view._occupancy
    ends = [a.base + a.bytes for a in memory.allocations]
    top = max(ends, default=1) / MEGABYTE
    plot = _figure(
        f"addresses-{number}", steps, 460, "address, MB",
        y_range=Range1d(start=0, end=top, bounds="auto", name=f"addresses-{number}-y"),
        output_backend="webgl",
    )  # fmt: skip
    wheel, hover = WheelZoomTool(modifiers=_ZOOMS), HoverTool(tooltips=None, renderers=[])
    tap = TapTool(behavior="inspect", renderers=[])
    plot.add_tools(PanTool(), wheel, BoxZoomTool(), ResetTool(), hover, tap)
    plot.toolbar.active_scroll = wheel
    bases = np.array([a.base for a in memory.allocations], np.int64)
    low = (bases[memory.allocation] + memory.offset) if len(memory.values) else memory.offset
    found = np.array([view._describer.category(v).value for v in memory.values])
    renderers = []
    for category in Category:
        ids = np.flatnonzero((found == category.value) & (memory.stop > memory.start))
        if not len(ids):
            continue
        renderers.append(_quads(plot, view, low, ids, COLORS[category]))
    chosen = ColumnDataSource(
        {name: np.zeros(0, np.float32) for name in ("left", "right", "bottom", "top")},
        name=f"chosen-{number}",
    )
    chosen.data["color"] = []
    plot.quad(
        "left", "right", "top", "bottom", source=chosen, fill_alpha=0, line_color="color",
        line_width=3,
    )  # fmt: skip
    hover.renderers = tap.renderers = renderers
    code = (
        "const at = cb_data.index.indices;"
        f"if (at.length) olla.hover({number}, cb_data.renderer.data_source.data.id[at[0]])"
    )
    hover.callback = CustomJS(code=code)
    code = (
        "const at = cb_data.source.inspected.indices;"
        f"if (at.length) olla.choose({number}, cb_data.source.data.id[at[0]])"
    )
    tap.callback = CustomJS(code=code)
    return plot


def _quads(plot: Any, view: MemoryView, low: np.ndarray, ids: np.ndarray, color: str) -> Any:
    memory = view._occupancy
    source = ColumnDataSource(
        {
            "left": memory.start[ids].astype(np.float32),
            "right": memory.stop[ids].astype(np.float32),
            "bottom": (low[ids] / MEGABYTE).astype(np.float32),
            "top": ((low[ids] + memory.bytes[ids]) / MEGABYTE).astype(np.float32),
            "alpha": np.full(len(ids), 0.85, np.float32),
            "id": ids.astype(np.int32),
        },
        tags=["rectangles"],
    )
    return plot.quad(
        "left", "right", "top", "bottom", source=source, fill_color=color, fill_alpha="alpha",
        line_color="#ffffff", line_alpha=0.25 if len(memory.values) < _MANY else 0, line_width=0.5,
        selection_fill_alpha="alpha", nonselection_fill_alpha="alpha",
    )  # fmt: skip
