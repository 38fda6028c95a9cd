"""Tables and lines that compare a step's planned run with its run in XLA's own order."""

from __future__ import annotations

from olla_xla.cli.report.tables import Table, change, megabytes, percent
from olla_xla.problem.plan import Plan
from olla_xla.tools.measure.records import Comparison, Measured, Recomputation


def measured_table(comparison: Comparison, title: str) -> Table:
    """A table of the memory and step time measured with XLA's order and with the plan; MB, ms."""
    ours, theirs = comparison.planned, comparison.unplanned
    rows = [
        _sizes("XLA's total, assigned", theirs.assigned_bytes, ours.assigned_bytes),
        _sizes("resident over the steps", theirs.steps_peak_bytes, ours.steps_peak_bytes),
        _sizes("resident, whole process", theirs.process_peak_bytes, ours.process_peak_bytes),
    ]
    if theirs.device_peak_bytes is not None or ours.device_peak_bytes is not None:
        rows.append(
            _sizes("peak in use on device", theirs.device_peak_bytes, ours.device_peak_bytes)
        )
    rows.append(
        (
            "median step",
            f"{_step(theirs):.1f} ms",
            f"{_step(ours):.1f} ms",
            f"ratio {comparison.time_ratio:.3f}",
        )
    )
    return Table((":", "XLA's order", "planned", ":"), rows, title)


def memory_table(comparison: Comparison) -> Table:
    """Predicted, assigned and measured totals in MB, one row for each order."""
    ours, theirs = comparison.planned, comparison.unplanned
    rows = []
    for name, one, predicted in (
        ("XLA's order", theirs, ours.xla_predicted_bytes),
        ("planned", ours, ours.predicted_bytes),
    ):
        measured = one.measured_bytes
        rows.append(
            (
                name,
                megabytes(predicted),
                megabytes(one.assigned_bytes),
                "not measured" if measured is None else megabytes(measured),
                megabytes(one.arguments_bytes),
                megabytes(one.profiled_bytes),
            )
        )
    headings = (":", "predicted", "assigned", "measured", "of it arguments", "profiler")
    return Table(headings, rows, "Memory, MB")


def unmeasured_table(plan: Plan, title: str) -> Table:
    """Predicted and assigned totals in MB of a step that was only compiled."""
    rows = [
        ("XLA's order", plan.xla_predicted_bytes, plan.xla_bytes),
        ("planned", plan.predicted_bytes, plan.assigned_bytes),
    ]
    cells = [(name, megabytes(p), megabytes(a), "not measured") for name, p, a in rows]
    return Table((":", "predicted", "assigned", "measured"), cells, f"{title}, MB")


def recomputation_table(found: Recomputation) -> Table:
    """A table of XLA's order beside a plan that recomputes, run alternately: MB, ms, percent."""
    rows = []
    for name, one in (("XLA's order", found.kept), ("planned, with recomputation", found.again)):
        first = one is found.kept
        rows.append(
            (
                name,
                megabytes(one.assigned_bytes),
                *prediction(one.predicted_seconds, one.seconds),
                "" if first else percent(found.planned, 1),
                "" if first else percent(found.predicted, 1),
                "" if first else percent(found.overhead, 1),
                "" if first else " to ".join(percent(end, 1) for end in found.interval),
            )
        )
    title = f"Run in turns, {len(found.again.step_seconds)} steps of each"
    headings = (
        *(":", "assigned", "pred. ms", "meas. ms", "err. %"),
        *("plan + %", "pred. + %", "meas. + %", "95 %"),
    )
    return Table(headings, rows, title)


def prediction(predicted: float | None, measured: float) -> tuple[str, str, str]:
    """Cells for a time in seconds: predicted ms, measured ms, error of the prediction in percent.

    Without a prediction the first and the last are "-".
    """
    if not predicted:
        return "-", f"{1e3 * measured:.1f}", "-"
    error = percent(predicted / measured - 1, 1)
    return f"{1e3 * predicted:.1f}", f"{1e3 * measured:.1f}", error


def _sizes(label: str, theirs: int | None, ours: int | None) -> tuple[str, str, str, str]:
    grown = "" if not theirs or ours is None else change(ours / theirs - 1)
    return label, f"{megabytes(theirs)} MB", f"{megabytes(ours)} MB", grown


def _step(measured: Measured) -> float:
    """Median step time in milliseconds."""
    return 1e3 * measured.seconds


def measured_verdict(comparison: Comparison) -> str:
    """One line on a measurement: are outputs equal, what is recomputed, was a plan in use."""
    ours = comparison.planned
    steps, leaves = len(ours.digests), len(ours.leaves)
    if comparison.difference:
        line = f"NOT identical: {comparison.difference}."
    else:
        line = f"Measured: all {leaves} outputs of {steps} steps are identical bit for bit."
    if ours.clones or ours.stacks:
        again = "instruction is" if ours.clones == 1 else "instructions are"
        line += f" {ours.clones} {again} computed again" if ours.clones else ""
        line += " and" if ours.clones and ours.stacks else ""
        line += f" {ours.stacks} scan residuals are recomputed" if ours.stacks else ""
        line += f": {percent(ours.overhead, 1)} % added time planned for"
        if found := comparison.recomputation:
            line += f", {percent(found.overhead, 1)} % measured against XLA's order"
        line += "."
    if not ours.planned:
        line += f" XLA's own order is kept: {ours.reason}. Both processes ran it, so"
        line += " what differs between them is noise."
    if not (ours.cached and comparison.unplanned.cached):
        line += " The whole-process figures include compiling."
    return line
