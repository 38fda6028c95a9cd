"""Tables of placements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent
from olla_xla.solvers.linear import Status

if TYPE_CHECKING:
    from benchmarks.place import InstanceRow, PlanRow, ProgramRow, RandomRow


def instance_table(rows: Sequence[InstanceRow]) -> Table:
    """MiniMalloc's instances, in their own units."""
    return Table(
        headings=(
            "instance:", "blocks", "capacity", "height", "seconds", "nodes", "load", "least",
            "ratio", "bound", "seconds",
        ),
        rows=[
            (
                row.name,
                f"{row.blocks}",
                f"{row.capacity:,}",
                "-" if row.height is None else f"{row.height:,}",
                f"{row.seconds:.2f}",
                f"{row.nodes:,}",
                f"{row.load:,}",
                "-" if row.least is None else f"{row.least:,}",
                f"{row.ratio:.4f}",
                f"{row.bound:,}",
                f"{row.least_seconds:.2f}",
            )
            for row in rows
        ],
        title="within the capacity, then the least height reached",
    )  # fmt: skip


def plans_table(rows: Sequence[PlanRow]) -> Table:
    """Plans of train steps; sizes in MB."""
    return Table(
        headings=(
            "case:", "blocks", "plan live", "live", "arena", "frag %", "to plan %", "seconds",
            "status:", "moved", "XLA live", "XLA heap", "XLA frag %",
        ),
        rows=[
            (
                row.case,
                f"{row.blocks:,}",
                megabytes(row.planned_bytes or row.live_bytes),
                megabytes(row.live_bytes),
                megabytes(row.arena_bytes),
                percent(row.fragmentation, 3),
                percent(row.change, 3),
                f"{row.seconds:.2f}",
                row.status,
                f"{row.moved:,}",
                megabytes(row.xla_live_bytes),
                megabytes(row.xla_heap_bytes),
                percent(row.xla_fragmentation, 3),
            )
            for row in rows
        ],
        title="offsets of plans; XLA's heap holds temporaries only; MB of 2^20 bytes",
    )  # fmt: skip


def programs_table(rows: Sequence[ProgramRow]) -> Table:
    """Plans placed by the integer program, beside the exact search; the live sum in bytes."""
    return Table(
        headings=(
            "case:", "blocks", "backend:", "form:", "live", "above %", "bound %", "status:",
            "by:", "seconds", "CPU s", "search %", "status:", "seconds", "CPU s",
        ),
        rows=[
            (
                row.case,
                f"{row.blocks:,}",
                row.backend,
                row.form if row.start else f"{row.form}, no start",
                f"{row.load_bytes:,}",
                "-" if row.height is None else percent(row.height / row.load_bytes - 1, 3),
                "-" if row.bound is None else percent(row.bound / row.load_bytes - 1, 3),
                row.status.split(" (")[0],
                row.by or "-",
                f"{row.seconds:.2f}",
                f"{row.cpu_seconds:.2f}",
                "-" if row.search_height is None
                else percent(row.search_height / row.load_bytes - 1, 3),
                row.search_status,
                f"{row.search_seconds:.2f}",
                f"{row.search_cpu_seconds:.2f}",
            )
            for row in rows
        ],
        title="places under the planned order by the integer program, then by the exact search "
        "alone; heights and bounds above the largest live sum (bytes)",
    )  # fmt: skip


def compared_table(rows: Sequence[ProgramRow]) -> Table:
    """A line for each plan, of rows stored; a column for each way to place it.

    A cell says what met the bound, and seconds (of the CPU), or how far above it the packing ended.
    """
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        found = cells.setdefault(row.case, {})
        found["blocks"] = f"{row.blocks:,}"
        best = max(r.bound or 0 for r in rows if r.case == row.case)
        found["bound above live %"] = percent(best / row.load_bytes - 1, 3)
        proven = row.status == Status.OPTIMAL
        above = None if row.height is None else percent(row.height / max(best, 1) - 1, 3)
        what = row.by if proven else f"{above} % above" if above else row.status.split(" (")[0]
        way = f"{row.backend}, {row.form}" + ("" if row.start else ", no start")
        found[way] = f"{what}; {row.seconds:.1f} ({row.cpu_seconds:.1f})"
        over = None if row.search_height is None else row.search_height / max(best, 1) - 1
        said = "met" if row.search_status == Status.OPTIMAL else f"{percent(over, 3)} % above"
        found["exact search alone"] = (
            f"{said}; {row.search_seconds:.1f} ({row.search_cpu_seconds:.1f})"
        )
    ways = list(dict.fromkeys(way for found in cells.values() for way in found))
    ways.sort(key=lambda way: way == "exact search alone")
    numbers = ("blocks", "bound above live %")
    return Table(
        headings=("case:", *(way if way in numbers else f"{way}:" for way in ways)),
        rows=[(case, *(found.get(way, "") for way in ways)) for case, found in cells.items()],
        title="what met the bound, seconds (of them CPU)",
    )


def random_line(row: RandomRow) -> str:
    """The random blocks in one line."""
    return (
        f"{row.blocks:,} random blocks: {row.height:,} bytes by {row.source}, bound {row.bound:,}, "
        f"gap {percent(row.gap)} %, {row.seconds:.1f} s"
    )


def summary_line(summary: Mapping[str, float]) -> str:
    """The summary of a benchmark, figure by figure."""
    return "; ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in summary.items())
