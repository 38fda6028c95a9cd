"""Stored plans as a table."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes
from olla_xla.compile.plan_files import Entry


def stored_table(entries: Sequence[Entry], folder: str) -> Table:
    """One row a file, most recently used first; totals in MB, file sizes in bytes."""
    lines = []
    for entry in sorted(entries, key=lambda e: (-e.used, e.path.name)):
        used = datetime.datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        plan = entry.plan
        about = (entry.path.name, used, f"{entry.bytes:,}")
        if plan is None:
            lines.append((*about, "", "", "", "", entry.trouble))
        else:
            total = plan.predicted_bytes if plan.assigned_bytes is None else plan.assigned_bytes
            sizes = megabytes(plan.xla_bytes), megabytes(total)
            lines.append((*about, plan.module, plan.target, *sizes, "fine"))
    total = sum(entry.bytes for entry in entries)
    return Table(
        headings=("file:", "last used:", "bytes", "module:", "for:", "XLA", "planned", "state:"),
        rows=lines,
        title=f"{folder}: {len(entries)} files, {total:,} bytes; totals in MB of 2^20 bytes",
    )
