"""Jobs of several processes as a table."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.together.job import Row
from olla_xla.cli.report.tables import Table


def together_table(rows: Sequence[Row]) -> Table:
    """A line for each case and number of processes, over all its runs; sizes in bytes."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.case, row.processes), []).append(row)
    lines = []
    for (case, processes), runs in groups.items():
        wrong = [row.wrong for row in runs if row.wrong]
        lines.append(
            (
                case,
                str(processes),
                f"{len(runs) - len(wrong)} of {len(runs)}",
                f"{sum(row.planned == row.processes for row in runs)}",
                f"{max(row.xla_bytes for row in runs):,}",
                f"{max(row.bytes for row in runs):,}",
                f"{max(row.seconds for row in runs):.1f}",
                wrong[0] if wrong else runs[-1].message,
            )
        )
    return Table(
        headings=("case:", "processes", "right", "planned", "XLA", "runs", "most s", "message:"),
        rows=lines,
        title="all or none run the plan; bytes of a device, assigned",
    )
