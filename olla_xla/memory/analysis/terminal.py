"""An analysis as tables, for terminals and notebooks."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from olla_xla.memory.analysis.analysis import Analysis
from olla_xla.memory.analysis.category import Category
from olla_xla.memory.analysis.donation import DonationAudit, Outcome
from olla_xla.memory.analysis.lines import short_line
from olla_xla.memory.analysis.live_tensor import LiveTensor
from olla_xla.memory.analysis.memory_view import MemoryView
from olla_xla.memory.analysis.peak_rows import peak_rows

__all__ = ["html", "megabytes", "renderable", "where"]


def megabytes(size: float, digits: int = 1) -> str:
    """Bytes in MB of 2**20: 1572864 -> "1.5"."""
    return f"{size / 2**20:,.{digits}f}"


def html(analysis: Analysis) -> str:
    """The tables as HTML, colours included."""
    console = Console(file=io.StringIO(), record=True, width=150, highlight=False)
    console.print(renderable(analysis))
    return console.export_html(
        inline_styles=True, code_format='<pre style="line-height:1.25">{code}</pre>'
    )


def renderable(analysis: Analysis, count: int = 15) -> RenderableType:
    """The tables, with so many rows of tensors, modules and lines."""
    last = analysis.views[-1]
    parts: list[RenderableType] = [_headline(analysis), _categories(analysis)]
    parts += [_tensors(last, count), _sums("module", last.by_module(), last, count)]
    parts += [_sums("line", last.by_line(), last, count)]
    if analysis.loops:
        parts.append(_loops(analysis, count))
    if analysis.donation is not None:
        parts.append(_donation(analysis.donation, count))
    return Group(*parts)


def _headline(analysis: Analysis) -> Text:
    lines = [analysis.title]
    for view in analysis.views:
        kind = "assigned" if view.assigned else "predicted"
        at = f" at {short_line(view.operator_line)}" if view.operator_line else ""
        lines.append(
            f"{view.name}: {megabytes(view.total_bytes)} MB {kind}, "
            f"{megabytes(view.live_bytes)} in use at the peak, step {view.step:,} of "
            f"{view.steps:,} ({view.operator}{at})"
        )
    lines.append(
        f"no order of XLA's operators needs less than {megabytes(analysis.lower_bound_bytes)} MB "
        f"({analysis.views[-1].name} is {100 * analysis.gap:.1f} % above that)"
    )
    if size := analysis.xla.constant_bytes:
        lines.append(f"constants of the executable, in no total: {megabytes(size)} MB")
    if analysis.remedy is not None:
        lines.append(analysis.remedy.sentence())
    return Text("\n".join(lines) + "\n")


def _table(title: str, headings: Sequence[str]) -> Table:
    """An empty table; headings that end in a colon are aligned left, without it."""
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style=""
    )
    for heading in headings:
        left = heading.endswith(":")
        table.add_column(
            heading.removesuffix(":"),
            justify="left" if left else "right",
            overflow="fold" if left else "ellipsis",
            no_wrap=not left,
        )
    return table


def _row(table: Table, *cells: str) -> None:
    table.add_row(*(Text(cell) for cell in cells))


def _categories(analysis: Analysis) -> Table:
    names = [f"{view.name}, MB" for view in analysis.views]
    title = "What memory is used for at the peak"
    table = _table(title, ("category:", *names, "in every order, MB"))
    for name, sizes in peak_rows(analysis):
        _row(table, name, *(megabytes(size) for size in sizes))
    return table


def _tensors(view: MemoryView, count: int) -> Table:
    tensors = [t for t in view.tensors if t.category is not Category.UNUSED]
    shown = tensors[:count]
    share = 100 * view.found_share
    title = (
        f"{len(shown)} largest of {len(tensors):,} tensors at the peak of {view.name}; "
        f"{share:.1f} % of the bytes lead to a line or an argument"
    )
    headings = ("MB", "category:", "tensor:", "where:", "operation:", "steps:", "last read by:")
    table = _table(title, headings)
    for tensor in shown:
        is_argument = tensor.operator == "parameter"  # whose name repeats its path
        _row(
            table,
            megabytes(tensor.bytes, 2),
            tensor.category,
            tensor.shape if is_argument else f"{tensor.name} {tensor.shape}".strip(),
            where(tensor),
            "/".join(tensor.op_name.split("/")[-3:]),
            f"{tensor.start:,}-{tensor.stop:,}",
            short_line(tensor.holder_line) or tensor.holder,
        )
    return table


def where(tensor: LiveTensor) -> str:
    """Where a tensor comes from: an argument's path, a line, or why there is neither."""
    line = short_line(tensor.line)
    if tensor.caller:
        line = f"{line} (from {short_line(tensor.caller)})"
    if line and tensor.is_argument:
        line = f"read at {line}"
    found = [tensor.argument, line]
    return ", ".join(part for part in found if part) or tensor.why


def _sums(what: str, sums: Mapping[str, int], view: MemoryView, count: int) -> Table:
    table = _table(f"By {what}", ("MB", "%", f"{what}:"))
    for name, size in list(sums.items())[:count]:
        share = f"{100 * size / max(view.total_bytes, 1):.1f}"
        _row(table, megabytes(size), share, short_line(name) or "(none)")
    return table


def _loops(analysis: Analysis, count: int) -> Table:
    table = _table("Loops", ("loop:", "line:", "times", "steps", "stacks", "MB", "largest stack:"))
    for loop in analysis.loops[:count]:
        stacks = loop.stacks
        _row(
            table,
            loop.name,
            short_line(loop.line),
            "?" if loop.trips is None else f"{loop.trips:,}",
            f"{loop.stop - loop.start:,}",
            str(len(stacks)),
            megabytes(sum(s.bytes for s in stacks)),
            f"{stacks[0].shape} {short_line(stacks[0].line)}" if stacks else "",
        )
    return table


def _donation(donation: DonationAudit, count: int) -> Table:
    found = [
        f"{donation.count(o)} {o} ({megabytes(donation.bytes(o))} MB)"
        for o in Outcome
        if donation.count(o)
    ]
    title = f"Donation: {donation.requested} requested; {', '.join(found) or 'no arguments'}"
    table = _table(title, ("MB", "argument:", "outcome:", "why:"))
    for row in donation.trouble[:count]:
        _row(table, megabytes(row.bytes, 2), f"{row.path} {row.type}", row.outcome, row.why)
    return table
