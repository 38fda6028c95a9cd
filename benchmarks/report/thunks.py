"""Executables of a GPU, and the faults put into them, as tables."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from benchmarks.thunks.rows import Row
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent


def thunks_table(rows: Sequence[Row]) -> Table:
    """A line for each executable."""
    lines = [
        (
            row.case,
            row.way if row.planned or row.way == "XLA" else "no plan",
            megabytes(row.bytes),
            f"{row.instructions:,}",
            f"{sum(row.kinds.values()):,}",
            megabytes(row.serialized_bytes),
            f"{row.compile_seconds:.1f}",
            f"{row.seconds:.2f}",
            percent(row.share, 1),
            f"{1e6 * row.issued_seconds:,.0f}",
            f"{1e6 * row.chain_seconds:,.0f}",
            f"{row.wrong} of {row.marked}" if row.marked else "-",
            ", ".join(f"{kind} {n}" for kind, n in sorted(row.kinds.items())),
            row.objection or "accepted",
        )
        for row in rows
    ]
    return Table(
        headings=(
            "step:", "order:", "total", "instructions", "thunks", "serialized", "compile s",
            "check s", "check %", "µs", "chain µs", "invariant", "kinds:", "verdict:",
        ),
        rows=lines,
        title="what a GPU will run; MB of 2^20 bytes, CPU seconds; check: of bytes alone; "
        "µs: predicted, as issued, and the longest chain of thunks that share bytes; invariant: "
        "fusions that read as such what they must not",
    )  # fmt: skip


def in_pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """XLA's own executable and the planned one of each step."""
    own = {row.case: row for row in rows if row.way == "XLA"}
    return [(own[row.case], row) for row in rows if row.way != "XLA"]


def summary_table(rows: Sequence[Row]) -> Table:
    """Figures over all executables, one line each."""
    pairs, dumped = in_pairs(rows), sum(row.placed > 0 for row in rows)
    lines = [
        ("executables", f"{len(rows):,}"),
        ("of steps that are planned", f"{sum(row.planned for row in rows):,}"),
        ("that the check rejects", f"{sum(bool(row.objection) for row in rows):,}"),
        ("kinds of thunks", ", ".join(f"{k} {n:,}" for k, n in sorted(_kinds(rows).items()))),
        ("kinds not known", ", ".join(sorted({k for row in rows for k in row.unknown})) or "none"),
        ("tensors as dumped", f"{sum(r.placed for r in rows):,} of {dumped:,} executables"),
        ("fusions marked, XLA's own order", f"{sum(own.marked for own, _ in pairs):,}"),
        ("of these with a wrong kernel", f"{sum(own.wrong for own, _ in pairs):,}"),
        ("fusions marked, planned", f"{sum(plan.marked for _, plan in pairs):,}"),
        ("of these with a wrong kernel", f"{sum(plan.wrong for _, plan in pairs):,}"),
        ("steps with more under the plan", f"{sum(p.wrong > o.wrong for o, p in pairs):,}"),
    ]
    if rows:
        most = max(rows, key=lambda row: row.share)
        total = sum(row.seconds for row in rows) / sum(row.compile_seconds for row in rows)
        lines += [
            ("check, fraction of all compiles", f"{total:.1%}"),
            ("check, largest fraction", f"{most.share:.1%}: {most.case}, {most.way}"),
        ]
    for name, field in (("run", "issued_seconds"), ("chain", "chain_seconds")):
        changes = [(getattr(p, field) / getattr(o, field) - 1, o.case) for o, p in pairs]
        if changes:
            change, case = max(changes)
            lines.append((f"{name} planned, longest against XLA's", f"{change:+.2%}: {case}"))
    return Table(headings=("all:", "together:"), rows=lines, title="all together")


def _kinds(rows: Sequence[Row]) -> collections.Counter[str]:
    kinds: collections.Counter[str] = collections.Counter()
    for row in rows:
        kinds.update(row.kinds)
    return kinds


def faults_table(found: Sequence[tuple[str, str, str, str]]) -> Table:
    """A line for each kind of fault, and one for each that was missed."""
    made = collections.Counter(kind for _, kind, _, _ in found)
    caught = collections.Counter(kind for _, kind, _, said in found if said)
    lines = [(kind, str(n), str(caught[kind]), "") for kind, n in sorted(made.items())]
    lines += [(kind, "1", "0", f"{name}: {what}") for name, kind, what, said in found if not said]
    return Table(headings=("fault:", "made", "caught", "missed:"), rows=lines, title="faults")
