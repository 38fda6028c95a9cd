"""The table and lines that `olla_xla plan` prints about a plan."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from olla_xla.analysis.difference import Difference
from olla_xla.analysis.memory_view import MemoryView
from olla_xla.analysis.terminal import TENSOR_HEADINGS, tensor_rows
from olla_xla.cli.report.tables import Table, change, megabytes, more, percent, seconds
from olla_xla.compile.assignment import AssignmentReport
from olla_xla.memory.sources import short_line
from olla_xla.problem import summary
from olla_xla.problem.plan import Plan
from olla_xla.problem.plan_parts import PlanStatus, Proof
from olla_xla.tools.residual_rows import ResidualRow

if TYPE_CHECKING:
    from olla_xla.tools.assignment_report import AllocationRow

_NOTEWORTHY = 0.0005
"""A saving below this fraction of XLA's total counts as none: it is printed as 0.0 %."""

_CONTENT: Mapping[str, str] = {
    PlanStatus.OPTIMAL: "no order has a smaller lifetime peak",
    PlanStatus.FEASIBLE: "not proven optimal",
    PlanStatus.XLA: "XLA's own order is kept",
}


_WORTH_TELLING = 1 << 20
"""Least bytes of constants, or in another memory, for which the table has a row."""


def plan_table(
    plan: Plan,
    *,
    assigned: bool,
    memory_optimized_bytes: int | None,
    all_seconds: float,
    title: str,
    own_order: str = "XLA's own order",
    elsewhere: Mapping[str, int] = types.MappingProxyType({}),
    constant_bytes: int = 0,
) -> Table:
    """Returns a table of a plan's totals, bound, gaps and seconds, beside XLA's own order.

    Args:
      plan: the plan in use. title: what was planned.
      assigned: whether XLA assigned `xla_bytes` and the planned total; else they are predicted.
      memory_optimized_bytes: XLA's assigned total with its scheduler for memory, or None.
      all_seconds: planning, compiling and checking together.
      own_order: what to call the order that the module came with.
      elsewhere: bytes assigned in other memories of the device, by their names.
      constant_bytes: bytes of the executable's constants, which no total counts.
    """
    total = plan.total_bytes
    kind = "assigned" if assigned else "predicted"
    rows = [(own_order, _mb(plan.xla_bytes), kind)]
    if memory_optimized_bytes is not None:
        note = f"assigned; {change(more(memory_optimized_bytes, plan.xla_bytes))}"
        rows.append(("XLA's memory-optimized order", _mb(memory_optimized_bytes), note))
    rows += [
        ("planned", _mb(total), f"{kind}; {change(more(total, plan.xla_bytes))}"),
        *_peaks(plan),
        ("lower bound", _mb(plan.lower_bound_bytes), summary.of_the_bound(plan)),
        ("lifetime gap", f"{percent(plan.gap)} %", "excess of least peak over lower bound"),
        ("assignment loss", f"{percent(plan.loss)} %", f"{kind} total above the least peak"),
    ]
    if plan.assigned_bytes is not None:
        ours = more(plan.predicted_bytes, plan.assigned_bytes)
        theirs = more(plan.xla_predicted_bytes, plan.xla_bytes)
        note = "error of the predicted total with the plan"
        if not plan.host_arrays:  # else that is of the step with nothing spilled
            note += f"; {percent(theirs)} % with XLA's own order"
        rows.append(("prediction error", f"{percent(ours)} %", note))
    for name, size in elsewhere.items():
        if size >= _WORTH_TELLING:
            rows.append((f"in {name}", _mb(size), "assigned by XLA; counted in no total"))
    if constant_bytes >= _WORTH_TELLING:
        rows.append(("constants", _mb(constant_bytes), "in the executable; counted in no total"))
    rows += [*summary.of_recomputation(plan), *summary.of_the_path(plan)]
    word = summary.status_word(plan)
    content = _CONTENT.get(word, "the total is this near to the lower bound of every order")
    stopped = f"{content}; the search was stopped by: {plan.stopped_by.replace('_', ' ')}"
    note = f"for planning alone; {seconds(all_seconds)} s with compiling and checking"
    rows.append(("time", f"{seconds(plan.seconds)} s", note))
    rows.append(("status", word, stopped))
    if plan.refused:
        rows.append(
            ("refused", f"{plan.refused:,}", summary.of_refusals(plan.refused, plan.proposed))
        )
    return Table((":", "", ":"), rows, title)


def _peaks(plan: Plan) -> list[tuple[str, str, str]]:
    if not summary.was_searched(plan):
        return []
    return [
        ("lifetime peak", _mb(plan.peak_bytes), "predicted for the planned order"),
        ("least lifetime peak", _mb(plan.least_peak_bytes), "of the best order found"),
    ]


def _mb(size: int) -> str:
    return f"{megabytes(size)} MB"


def verdict(plan: Plan, *, planned: bool, reason: str, refused: bool = False) -> str:
    """Returns a line: whether the plan lowers memory, and how certain the figures are.

    Args:
      plan: the plan. planned: whether the plan is in use.
      reason: why it is not in use, or "".
      refused: whether XLA refuses to compile its own order because it does not fit the device.
    """
    if plan.assigned_bytes is None:
        sure = "Only predicted: nothing was compiled."
        saved = plan.xla_bytes - plan.predicted_bytes
    else:
        sure = "Compiled: XLA assigned these bytes; nothing was run."
        if refused:
            sure += " XLA refuses to compile its own order, which does not fit the device."
        saved = plan.xla_bytes - plan.assigned_bytes
    if planned and saved >= _NOTEWORTHY * plan.xla_bytes:
        share = percent(saved / plan.xla_bytes, 1)
        return f"The planned order saves {megabytes(saved)} MB ({share} %). {sure}"
    if planned and saved > 0:
        return f"The planned order saves only {saved:,} bytes. {sure}"
    bound = plan.lower_bound_bytes
    if bound <= plan.xla_bytes <= bound * (1 + plan.tolerance):
        because = "; the lower bound proves that no order needs less memory"
    else:  # a total below the bound has values that XLA moves to another memory after its schedule
        because = f": {reason}" if reason else ""
    return f"XLA's own order is kept{because}. {sure}"


def clones_line(plan: Plan) -> str:
    """Returns a line on recomputation: what is computed again; what time and traffic that adds."""
    what = []
    if plan.joined:
        what.append(f"{len(plan.joined)} arrays overwrite the arrays that they are computed from")
    if plan.sunk:
        what.append(f"{len(plan.sunk)} copies of arrays in front of loops are left out")
    if stacks := plan.recomputed_residuals:
        new = plan.added_residuals
        of = f" (from {new} smaller values, which are stored instead)" if new else ""
        what.append(f"{stacks} scan residuals are recomputed{of}")
    if every := [record.every for record in plan.loops if record.every]:
        between = " and ".join(f"{k:,}" for k in dict.fromkeys(every))
        what.append(f"loops store states every {between} iterations and recompute the other states")
    if plan.clones:
        what.append(f"{len(plan.clones)} instructions are run a second time")
    if plan.exposed_seconds:
        what.append(f"{1e3 * plan.exposed_seconds:.2f} ms of transfers no longer overlap compute")
    if not what:
        return "Nothing is computed twice."
    moved = 100 * plan.added_moved_bytes / max(plan.moved_bytes, 1)
    text = ", ".join(what)
    return (
        f"{text[0].upper()}{text[1:]}. The predicted time changes by {100 * plan.overhead:+.1f} % "
        f"({1e3 * plan.added_seconds:+.2f} ms), the memory traffic by {moved:+.1f} %."
    )


def check_line(report: AssignmentReport) -> str:
    """Returns a line on how the plan compares with XLA's buffer assignment."""
    line = (
        f"Checked: the executable runs the planned order; {report.tensors} tensors have the "
        f"predicted size, {report.as_predicted} the predicted address; no two live tensors overlap."
    )
    if not report.tensors:
        line = "Checked: the executable runs XLA's own order; no two live tensors overlap."
    if report.elsewhere:
        size = f"{report.elsewhere} tensors ({megabytes(report.elsewhere_bytes)} MB)"
        line += f" {size} do not have the predicted addresses."
    if report.added:
        line += f" XLA added {len(report.added)} instructions after planning."
    if report.unread:
        line += f" Unread results were removed from {len(report.unread)} fusions."
    return line


def peak_table(view: MemoryView, count: int = 10) -> Table:
    """Returns a table of the `count` largest tensors at the peak, named as `analyze` names them."""
    title, rows = tensor_rows(view, count)
    title += f" ({megabytes(view.live_bytes)} MB in use, step {view.step:,} of {view.steps:,})"
    return Table(TENSOR_HEADINGS, rows, f"{title}: {view.operator}")


def short_operation(op_name: str) -> str:
    """Returns the last three parts of JAX's op name, such as layer and operation; "-" if empty."""
    return "/".join(op_name.split("/")[-3:]) or "-"


def proofs_table(proofs: Sequence[Proof]) -> Table:
    """Returns a table, in bytes, of what integer programs proved of each order or packing."""
    return Table(
        headings=(
            "what:", "of:", "backend:", "start", "cut", "found", "bound", "gap %", "status:",
            "proven by:", "columns", "rows", "seconds", "it said:",
        ),
        rows=[
            (
                p.what,
                p.computation,
                p.backend,
                f"{p.start_bytes:,}",
                f"{p.cut_bytes:,}",
                f"{p.peak_bytes:,}",
                f"{p.bound_bytes:,}",
                percent(p.gap),
                p.status,
                p.proven_by or "-",
                f"{p.variables:,}",
                f"{p.rows:,}",
                f"{p.seconds:.1f}",
                p.message.split(" (")[0],
            )
            for p in proofs
        ],
        title="integer programs: lifetime peaks of orders, and heights of packings, in bytes",
    )  # fmt: skip


def stacks_table(rows: Sequence[ResidualRow], count: int, least: int = 0) -> Table:
    """Returns a table of the largest scan residuals (arrays filled by loops), kept or recomputed.

    Args:
      rows: one a residual, largest first; not empty. count: how many rows to list.
      least: bytes that every choice within the allowed time keeps; 0 if that is not known.
    """
    kept = sum(row.bytes * row.slices // row.iterations for row in rows)
    loops = len({row.loop for row in rows})
    title = (
        f"{min(count, len(rows))} largest of {len(rows)} scan residuals of {loops} "
        f"{'loop' if loops == 1 else 'loops'}; {megabytes(kept)} MB of their "
        f"{megabytes(sum(row.bytes for row in rows))} MB stay in memory"
    )
    if least:
        title += f"; within the allowed added time at least {megabytes(least)} MB must stay"
    cells = [
        (
            megabytes(row.bytes),
            f"{row.iterations:,}",
            _fate(row),
            short_line(row.location) if row.location else short_operation(row.op_name),
        )
        for row in rows[:count]
    ]
    return Table(("MB", "iterations", "kept:", "what:"), cells, title)


def _fate(row: ResidualRow) -> str:
    if row.slices == row.iterations:
        return "all, new" if row.new else "all"
    return f"{row.slices} at a time" if row.slices else "computed again"


def allocation_table(found: Sequence[AllocationRow], count: int) -> Table:
    """Returns a table of the first `count` allocations, which come largest first; sizes in MB."""
    return Table(
        headings=(
            "allocation", "kind:", "values", "size", "largest live", "frag %", "packed", "bound",
        ),
        rows=[
            (
                f"{row.index}",
                row.kind,
                f"{row.values:,}",
                megabytes(row.size, 2),
                megabytes(row.live_bytes, 2),
                percent(more(row.size, row.live_bytes), 3),
                megabytes(row.packed_bytes, 2),
                megabytes(row.bound_bytes, 2),
            )
            for row in found[:count]
        ],
        title="XLA's allocations in MB: bytes live at a time in each, and a tighter packing",
    )  # fmt: skip


def difference_line(found: Difference) -> str:
    """Returns a line with both totals in MB, and by how much the second is larger."""
    grown = f"{megabytes(found.bytes, 2)} MB, {percent(found.share)} %"
    sign = "+" if found.bytes > 0 else ""
    return (
        f"{found.before.name}: {megabytes(found.before.total_bytes, 2)} MB; "
        f"{found.after.name}: {megabytes(found.after.total_bytes, 2)} MB ({sign}{grown})"
    )


def difference_table(found: Difference, count: int) -> Table:
    """Returns a table of the `count` largest changes, one for each kind of tensor; sizes in MB."""
    shown = found.changes[:count]
    what = "tensors" if found.before.of_plan else "tensors at the peak"
    title = f"{len(shown)} largest of {len(found.changes):,} differences between kinds of {what}"
    rows = [
        (
            megabytes(c.bytes, 2),
            _amount(c.before),
            _amount(c.after),
            c.category,
            c.shape,
            short_operation(c.what) if "jit(" in c.what else c.what,
        )
        for c in shown
    ]
    return Table(("MB more", "before", "after", "category:", "shape:", "tensor:"), rows, title)


def _amount(amount: tuple[int, int]) -> str:
    count, size = amount
    return f"{count} x {megabytes(size / count, 2)}" if count else "-"
