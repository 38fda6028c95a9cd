"""Tables of profile and replay."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.profile_replay.profiles import Row
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes


def profiles_table(rows: Sequence[Row]) -> Table:
    """A line for each loop; MB, and microseconds for one request or release."""
    return Table(
        headings=(
            "loop:", "iterations", "requests", "live", "caching", "arena", "profiles", "replans",
            "elsewhere", "its MB", "learned arena", "while learning", "learned", "planned us",
            "of it serving", "learned us", "caching us", "malloc us",
        ),
        rows=[
            (
                r.loop,
                f"{r.iterations}",
                f"{r.requests:,}",
                megabytes(r.live_bytes, 2),
                megabytes(r.caching_bytes, 2),
                megabytes(r.arena_bytes, 2),
                f"{r.profiles}",
                f"{r.replans}",
                f"{r.elsewhere:,}",
                megabytes(r.elsewhere_bytes, 2),
                megabytes(r.learned_bytes, 2) if r.learned_bytes else "-",
                megabytes(r.learning_bytes, 2),
                f"{r.learned}",
                f"{1e6 * r.planned_seconds:.2f}",
                f"{1e6 * r.serving_seconds:.2f}",
                f"{1e6 * r.learned_seconds:.2f}",
                f"{1e6 * r.caching_seconds:.2f}",
                f"{1e6 * r.malloc_seconds:.3f}",
            )
            for r in rows
        ],
        title="MB of 2^20 bytes; planned and caching allocator run in Python, malloc does not",
    )  # fmt: skip
