"""A comparison of planned and unplanned runs as a table."""

from __future__ import annotations

import statistics

from olla_xla.measure import Comparison, Measured
from olla_xla.report.tables import Table
from olla_xla.report.units import megabytes, percent

__all__ = ["measured_table", "measured_verdict"]


def measured_table(comparison: Comparison, title: str) -> Table:
    """What both processes measured, side by side."""
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


def _sizes(label: str, theirs: int | None, ours: int | None) -> tuple[str, str, str, str]:
    change = "" if not theirs or ours is None else f"{percent(ours / theirs - 1, 1)} %"
    return label, f"{megabytes(theirs)} MB", f"{megabytes(ours)} MB", change


def _step(measured: Measured) -> float:
    """Median step time in milliseconds."""
    return 1e3 * statistics.median(measured.step_seconds)


def measured_verdict(comparison: Comparison) -> str:
    """One line: whether the outputs are identical, and whether an order was found."""
    ours = comparison.planned
    steps, leaves = len(ours.digests), len(ours.leaves)
    if comparison.difference:
        line = f"NOT identical: {comparison.difference}."
    else:
        line = f"Measured: all {leaves} outputs of {steps} steps are identical bit for bit."
    if ours.clones:
        line += (
            f" {ours.clones} instructions are computed again: {percent(ours.overhead, 1)} % added "
            f"time predicted, {percent(comparison.time_ratio - 1, 1)} % measured."
        )
    if not ours.planned:
        line += f" An order helps nothing here: {ours.reason}."
    if not (ours.cached and comparison.unplanned.cached):
        line += " The whole-process figures include compiling."
    return line
