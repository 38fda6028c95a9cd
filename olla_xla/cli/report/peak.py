"""What lives at the peak of a scheduled module: the largest tensors and where they come from."""

from __future__ import annotations

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes
from olla_xla.memory.analysis.category import Category
from olla_xla.memory.analysis.lines import short_line
from olla_xla.memory.analysis.memory_view import MemoryView
from olla_xla.memory.analysis.terminal import what

__all__ = ["peak_table", "short_location", "short_operation"]


def peak_table(view: MemoryView, count: int = 10) -> Table:
    """The `count` largest tensors at the peak, as `olla_xla analyze` names them."""
    tensors = [t for t in view.tensors if t.category is not Category.UNUSED]
    shown = tensors[:count]
    title = (
        f"{len(shown)} largest of {len(tensors):,} tensors at the peak, "
        f"{megabytes(view.live_bytes)} MB at step {view.step:,} of {view.steps:,} ({view.operator})"
    )
    rows = [(megabytes(t.bytes, 2), t.category.short, t.shape, what(t)) for t in shown]
    return Table(("MB", "category:", "shape:", "what:"), rows, title)


def short_location(location: str) -> str:
    """The location as `short_line` has it, "-" if there is none."""
    return short_line(location) or "-"


def short_operation(op_name: str) -> str:
    """The last parts of JAX's op name: what was called, and in which layer."""
    return "/".join(op_name.split("/")[-3:]) or "-"
