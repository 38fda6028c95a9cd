"""Soaks as a table."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.soak.job import Curve
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes


def soak_table(curves: Sequence[tuple[Curve, str]]) -> Table:
    """One line for each curve, with the reason if it fails; sizes in MB."""
    lines = []
    for curve, wrong in curves:
        middle, last = curve.samples[len(curve.samples) // 2], curve.samples[-1]
        lines.append(
            (
                curve.part,
                curve.way,
                str(last.count),
                megabytes(middle.resident_bytes),
                megabytes(last.resident_bytes),
                f"{curve.bytes_each / 2**10:,.1f}",
                f"{middle.first_seconds:.3f}",
                f"{last.first_seconds:.3f}",
                f"{1e3 * middle.call_seconds:.2f}",
                f"{1e3 * last.call_seconds:.2f}",
                wrong,
            )
        )
    return Table(
        headings=(
            "part:", "way:", "times", "resident, half way", "in the end", "KB each time",
            "first call s, half way", "in the end", "a call ms, half way", "in the end", "wrong:",
        ),
        rows=lines,
        title="one process each; MB of 2^20 bytes; each time: median slope of the second half",
    )  # fmt: skip
