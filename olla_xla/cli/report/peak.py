"""The largest tensors at the peak of a scheduled module, and what made them."""

from __future__ import annotations

from olla_xla.analysis.memory_view import MemoryView
from olla_xla.analysis.terminal import TENSOR_HEADINGS, tensor_rows
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes
from olla_xla.memory.sources import short_line


def peak_table(view: MemoryView, count: int = 10) -> Table:
    """The `count` largest tensors at the peak, as `olla_xla analyze` names them."""
    title, rows = tensor_rows(view, count)
    title += f", {megabytes(view.live_bytes)} MB at step {view.step:,} of {view.steps:,}"
    return Table(TENSOR_HEADINGS, rows, f"{title} ({view.operator})")


def short_location(location: str) -> str:
    """A source location as `short_line` shortens it; "-" if there is none."""
    return short_line(location) or "-"


def short_operation(op_name: str) -> str:
    """The last three parts of JAX's op name, such as a layer and its operation; "-" if empty."""
    return "/".join(op_name.split("/")[-3:]) or "-"
