"""Puts the report together: plots, tables, script and style in one file."""

from __future__ import annotations

import base64
import gzip
import html
import json
from importlib import resources

from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.resources import Resources

from olla_xla.analysis.analysis import Analysis, peak_rows
from olla_xla.analysis.category import COLORS, Category
from olla_xla.analysis.html.plots import MEGABYTE, plots
from olla_xla.analysis.html.tables import Texts, view_tables
from olla_xla.analysis.terminal import (
    bounded,
    from_bound,
    megabytes,
    of_devices,
    other_memories,
)
from olla_xla.memory.sources import short_line


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
    return resources.files("olla_xla.analysis.html").joinpath(name).read_text(encoding="utf-8")


def _packed(data: object) -> str:
    """Data as JSON, compressed, in letters that may stand in a script."""
    text = json.dumps(data, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _donation(analysis: Analysis) -> list[list[object]]:
    assert analysis.donation is not None
    rows = analysis.donation.trouble
    return [[r.path, r.type, r.bytes, str(r.outcome), r.why] for r in rows]


def _certificate(analysis: Analysis) -> str:
    """Totals, bound and gap; of a TPU padding and other memories."""
    rows = []
    for view in analysis.views:
        kind = "assigned by XLA" if view.assigned else "predicted"
        live = megabytes(view.live_bytes, 2)
        last = view is analysis.views[-1]  # the bound may be of its operators alone
        above = f"; {from_bound(analysis.gap)} the bound" if last else ""
        rows.append(
            f"<tr><th>{html.escape(view.name)}</th><td>{megabytes(view.total_bytes, 2)} MB</td>"
            f"<td>{kind}; {live} in use at the peak{above}</td></tr>"
        )
        if view.padding:
            rows.append(
                f"<tr><th>of that padding</th><td>{megabytes(view.padding, 2)} MB</td>"
                "<td>at the peak, where dimensions fill no whole tiles</td></tr>"
            )
        if found := other_memories(view):
            rows.append(
                f"<tr><th>beside it</th><td></td><td>{html.escape(found)}, in no total</td></tr>"
            )
    where = f"at {analysis.bound.operator} {short_line(analysis.bound.operator_line)}"
    if analysis.lower_bound_bytes > analysis.bound.bytes:
        where = f"by the plan's search; {megabytes(analysis.bound.bytes, 2)} MB {where}"
    bound = megabytes(analysis.lower_bound_bytes, 2)
    rows.append(
        f"<tr><th>lower bound</th><td>{bound} MB</td><td>no order of "
        f"{bounded(analysis)} needs less ({html.escape(where)})</td></tr>"
    )
    plan = analysis.plan
    if plan is not None:
        changes = f", {len(plan.clones)} computed again" if plan.clones else ""
        rows.append(
            f"<tr><th>plan</th><td>{plan.status}</td><td>{plan.seconds:.1f} s of planning, gap "
            f"{100 * plan.gap:.2f} %, loss {100 * plan.loss:.2f} %{changes}</td></tr>"
        )
    if analysis.remedy is not None:
        heading, sentence = analysis.remedy.sentence().split(": ", 1)
        heading, sentence = html.escape(heading.lower()), html.escape(sentence)
        rows.append(f"<tr><th>{heading}</th><td></td><td>{sentence}</td></tr>")
    return "".join(rows)


def _categories(analysis: Analysis) -> str:
    """A table of categories, with their colours, at the peak of each order and in the bound."""
    names = "".join(f"<th>{html.escape(v.name)}</th>" for v in analysis.views)
    rows = [f"<tr><th>at the peak, MB</th>{names}<th>in every order</th></tr>"]
    colors = {str(category): color for category, color in COLORS.items()}
    known = [str(category) for category in Category]
    for name, sizes in peak_rows(analysis):
        cells = "".join(f"<td>{size / MEGABYTE:,.1f}</td>" for size in sizes)
        mark = f'<i class="mark" style="background:{colors[name]}"></i>' if name in colors else ""
        number = f' data-category="{known.index(name)}"' if name in known else ""
        rows.append(f"<tr{number}><th>{mark}{html.escape(name)}</th>{cells}</tr>")
    return "".join(rows)
