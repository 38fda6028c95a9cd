"""Puts the report together: plots, tables, script and style in one file."""

from __future__ import annotations

import base64
import collections
import gzip
import html
import json
from importlib import resources
from typing import Any

import numpy as np
from bokeh.core.types import ID
from bokeh.embed import json_item
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
from bokeh.resources import Resources
from numpy.typing import NDArray

from olla_xla.analysis.analysis import Analysis, peak_rows
from olla_xla.analysis.category import COLORS, Category
from olla_xla.analysis.live_tensor import padding_of
from olla_xla.analysis.memory_view import MemoryView, TensorSpans
from olla_xla.analysis.terminal import bounded, from_bound, megabytes, of_devices, other_memories
from olla_xla.memory.sources import short_call, short_line


def page(analysis: Analysis) -> str:
    """The text of an HTML page that shows an analysis; it loads nothing from elsewhere."""
    texts = Texts()
    data = {
        "views": [view_tables(view, texts) for view in analysis.views],
        "categories": [[str(c), COLORS[c]] for c in Category],
        "short": [c.short for c in Category],
        "unused": list(Category).index(Category.UNUSED),
        "loops": [
            [loop.name, short_line(loop.line), loop.start, loop.stop, loop.trips, loop.inside_bytes]
            for loop in analysis.loops
        ],
        "donation": [] if analysis.donation is None else _donation(analysis),
        "texts": texts.all,
    }
    scripts = Resources(mode="inline", components=["bokeh", "bokeh-gl"]).js_raw
    parts = {
        "TITLE": html.escape(analysis.title + of_devices(analysis.devices)),
        "CERTIFICATE": _certificate(analysis),
        "CATEGORIES": _categories(analysis),
        "STYLE": _file("report.css"),
        "BOKEH": "\n".join(f"<script>{script}</script>" for script in scripts),
        "ITEM": _packed(json_item(plots(analysis), ID("plots"))),
        "DATA": _packed(data),
        "SCRIPT": _file("report.js"),
    }
    text = _file("report.html")
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def _file(name: str) -> str:
    return resources.files("olla_xla.analysis").joinpath("html", name).read_text(encoding="utf-8")


def _packed(data: object) -> str:
    """Data as JSON, compressed and encoded as text that is safe inside an HTML script element."""
    text = json.dumps(data, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _donation(analysis: Analysis) -> list[list[object]]:
    assert analysis.donation is not None
    rows = analysis.donation.trouble
    return [[r.path, r.type, r.bytes, str(r.outcome), r.why] for r in rows]


def _certificate(analysis: Analysis) -> str:
    """HTML table rows: totals, bound, gap; if any, padding, other memories, plan and remedies."""
    rows = []
    for view in analysis.views:
        kind = "assigned by XLA" if view.assigned else "predicted"
        live = megabytes(view.live_bytes, 2)
        last = view is analysis.views[-1]  # the bound may be of its operators alone
        above = f"; {from_bound(analysis.gap)} the lower bound" if last else ""
        total = f"{megabytes(view.total_bytes, 2)} MB"
        rows.append((view.name, total, f"{kind}; {live} MB in use at the peak{above}"))
        if view.padding:
            where = "bytes of padding at the peak, as arrays are stored in whole tiles"
            rows.append(("of that padding", f"{megabytes(view.padding, 2)} MB", where))
        if note := other_memories(view):
            rows.append(("other memories", "", f"{note}, which no total includes"))
    where = f"at {analysis.bound.operator} {short_line(analysis.bound.operator_line)}"
    if analysis.lower_bound_bytes > analysis.bound.bytes:
        where = f"proven by the plan's search; {megabytes(analysis.bound.bytes, 2)} MB {where}"
    bound = f"{megabytes(analysis.lower_bound_bytes, 2)} MB"
    rows.append(("lower bound", bound, f"no order of {bounded(analysis)} needs less ({where})"))
    plan = analysis.plan
    if plan is not None:
        changes = f", {len(plan.clones)} instructions run again" if plan.clones else ""
        note = f"lifetime gap {100 * plan.gap:.2f} %, loss {100 * plan.loss:.2f} %{changes}"
        rows.append(("plan", plan.status, f"planned in {plan.seconds:.1f} s, {note}"))
    if analysis.remedy is not None:
        heading, sentence = analysis.remedy.sentence().split(": ", 1)
        rows.append((heading.lower(), "", sentence))
    cells = (map(html.escape, row) for row in rows)
    return "".join(f"<tr><th>{a}</th><td>{b}</td><td>{c}</td></tr>" for a, b, c in cells)


def _categories(analysis: Analysis) -> str:
    """HTML table of bytes by category, coloured, at the peak of each order and in the bound."""
    names = "".join(f"<th>{html.escape(v.name)}</th>" for v in analysis.views)
    rows = [f"<tr><th>MB at the peak</th>{names}<th>needed in every order</th></tr>"]
    colors = {str(category): color for category, color in COLORS.items()}
    known = [str(category) for category in Category]
    for name, sizes in peak_rows(analysis):
        cells = "".join(f"<td>{size / MEGABYTE:,.1f}</td>" for size in sizes)
        mark = f'<i class="mark" style="background:{colors[name]}"></i>' if name in colors else ""
        number = f' data-category="{known.index(name)}"' if name in known else ""
        rows.append(f"<tr{number}><th>{mark}{html.escape(name)}</th>{cells}</tr>")
    return "".join(rows)


_NEIGHBOURS = 24
"""Tensors listed at most as what a tensor is made from, and as what is made from it."""


class Texts:
    """A table of distinct strings, each with a number, so that JSON has each string once."""

    def __init__(self) -> None:
        self.all: list[str] = [""]
        self._number = {"": 0}

    def number(self, text: str) -> int:
        """Returns the number of a string in the table; a new string is added to the table."""
        if text not in self._number:
            self._number[text] = len(self.all)
            self.all.append(text)
        return self._number[text]


def view_tables(view: MemoryView, texts: Texts) -> dict[str, Any]:
    """One order's tensors as columns of a table, a dict for JSON; strings are added to `texts`.
    Columns of strings hold numbers in `texts`. A row is a rectangle of addresses and steps: `start`
    and `stop` are half-open steps in memory, `to` is where its tensor (`TensorSpans`) stops; `made`
    lists the rows of at most 24 tensors that its readers make; `padding` is bytes that only fill
    whole tiles, and `tighter` the shape that would take less, or "".
    """
    memory, describer = view._occupancy, view._describer
    spans = TensorSpans(memory)
    columns: dict[str, list[Any]] = collections.defaultdict(list)
    ordered = list(Category)
    for k, value in enumerate(memory.values):
        (_, stop), last = spans.of(k)
        origin, argument = describer.origin(value), describer.argument(value)
        is_argument = value.instruction.opcode == "parameter" and bool(argument)
        columns["name"].append(value.name)
        columns["category"].append(ordered.index(describer.category(value)))
        columns["shape"].append(texts.number(value.shape.text[:80]))
        columns["op"].append(texts.number("" if is_argument else origin.op_name))
        columns["module"].append(texts.number("" if is_argument else describer.layer(origin)))
        columns["line"].append(texts.number(short_line(origin.line)))
        calls = "\n".join(short_call(call) for call in origin.chain)
        columns["calls"].append(texts.number(calls if len(origin.chain) > 1 else ""))
        columns["argument"].append(texts.number(argument))
        padding = padding_of(value)
        tighter = f"{padding.tighter} {megabytes(padding.tighter_bytes, 2)} MB"
        columns["padding"].append(padding.bytes)
        columns["tighter"].append(texts.number(tighter if padding.tighter else ""))
        columns["to"].append(stop)
        columns["holder"].append(texts.number("" if last is None else last.name))
        held_at = "" if last is None else short_line(describer.line(last))
        columns["holder_line"].append(texts.number(held_at))
    columns["made"] = _made(view)
    columns["bytes"] = memory.bytes.tolist()
    columns["start"], columns["stop"] = memory.start.tolist(), memory.stop.tolist()
    columns["offset"] = _addresses(view).tolist()
    running = [
        texts.number("" if i is None else f"{i.name} {short_line(describer.line(i))}".strip())
        for i in memory.instructions
    ]
    return {
        "order": view.name,
        "assigned": view.assigned,
        "total": view.total_bytes,
        "live": view.live_bytes,
        "peak": view.step,
        "steps": view.steps,
        "padded": any(columns["padding"]),
        "columns": dict(columns),
        "running": running,
        "unused": [
            [texts.number(t.argument or t.why), t.bytes]
            for t in view.tensors
            if t.category is Category.UNUSED
        ],
    }


def _addresses(view: MemoryView) -> np.ndarray:
    """int64 [values]: the address of each value in bytes, with all allocations laid end to end."""
    memory = view._occupancy
    bases = np.array([a.base for a in memory.allocations], np.int64)
    return bases[memory.allocation] + memory.offset if len(memory.values) else memory.offset


def _made(view: MemoryView) -> list[list[int]]:
    """For each value, positions of at most 24 values made by the instructions that read it."""
    memory = view._occupancy
    by_maker = collections.defaultdict(list)
    for k, value in enumerate(memory.values):
        by_maker[value.instruction].append(k)
    result = []
    for k, value in enumerate(memory.values):
        neighbours = [j for use in value.uses for j in by_maker[use.instruction] if j != k]
        result.append(list(dict.fromkeys(neighbours))[:_NEIGHBOURS])
    return result


MEGABYTE = 2**20
_SAMPLES = 1500
"""Steps drawn of a schedule, at most; of each run of steps the one with the most memory is."""
_MANY = 3000
"""Tensors from which on rectangles have no outline: there would be little else to see."""
_GREY = "#808590"
_ZOOMS = "ctrl"
"""Keys to hold for the wheel to zoom; else it scrolls the page."""


def sampled(view: MemoryView) -> np.ndarray:
    """Step numbers to draw, int64, ascending, at most 1500: of each range of steps the fullest."""
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
        parts.append(_address_plot(view, number, steps))
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
    """Plot of bytes in use at each step, by category; lines show all orders, total, bound and peak.
    `number`: of the order in `analysis.views`. `steps`, `top`: the axes' range and end (in MB).
    """
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
    """int64 [steps]: bytes in use at each step, of all categories."""
    return np.sum([np.zeros(view.steps, np.int64), *view.timeline.values()], axis=0)


def _outline(plot: Any, view: MemoryView, *, dashed: bool) -> None:
    """Adds to a plot the line of the bytes that one order has in use at each step."""
    at = sampled(view)
    total = _in_use(view)[at] / MEGABYTE
    source = ColumnDataSource({"x": at.astype(np.float32), "total": total.astype(np.float32)})
    plot.step(
        "x", "total", source=source, mode="after", line_color="#d33" if dashed else _GREY,
        line_dash="dashed" if dashed else "solid", line_width=1.2,
    )  # fmt: skip


def _address_plot(view: MemoryView, number: int, steps: Range1d) -> Any:
    """Plot of each tensor of an order as a rectangle: addresses by the steps it is in memory.
    `number`: of the order, by which the page names its plots. `steps`: the range of the axis.
    """
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
    low = _addresses(view)
    categories = np.array([view._describer.category(v).value for v in memory.values])
    renderers = []
    for category in Category:
        ids = np.flatnonzero((categories == category.value) & (memory.stop > memory.start))
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
