"""Steps whole and in pieces, run on this CPU: bytes assigned and resident, time, predicted time.

Resident: by how much the memory of a process of its own rose at most while the step ran, and its
arguments. Time: the first quartile of --runs, whole and in pieces in turns, each after an untimed
run of the same kind. The last columns are the time in pieces as a part of the time whole: by the
clock, of the process's work on all cores, which other processes change little, and predicted, from
rates that are measured between the runs.
"""

from __future__ import annotations

import json
from typing import Any

from absl import flags

from benchmarks.driver import Flags, known
from benchmarks.fission.steps import LARGE, STEPS
from benchmarks.growing_file import GrowingFile
from benchmarks.worker_lines import worker_lines
from olla_xla import targets
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, megabytes


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.names("steps", list(STEPS), "Steps to run, by name.")
    define.whole("runs", 5, "Runs of each.", least=1)
    define.text("out", None, "File of rows (JSON lines) to write.")
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Runs all of them and prints the table."""
    names = known("steps", values.steps, STEPS | LARGE)
    file = GrowingFile(values.out)
    targets.prepare_environment("cpu")
    rows = []
    with Progress() as progress:
        for name in names:
            found = []
            for how in ({"cut": False}, {"cut": True}, {"runs": values.runs}):
                progress.stage(f"{name}, {json.dumps(how)}")
                found += worker_lines("benchmarks.fission.worker", {"name": name, **how}, name)
            whole, pieces, times = found
            for key, (before, after) in times.items():
                whole[key], pieces[key] = before, after
            rows.append((name, whole, pieces))
            file.add(json.dumps({"name": name, "whole": whole, "pieces": pieces}))
    shared.print_table(values, _table(rows))
    return 0


def _table(rows: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> Table:
    headings = (
        "step:", "along:", "pieces", "assigned, MB", "in pieces", "resident, MB", "in pieces ",
        "s", "in pieces  ", "predicted, s", "in pieces   ", "time", "work", "predicted",
    )  # fmt: skip
    return Table(headings, [_row(*row) for row in rows], "")


def _row(name: str, whole: dict[str, Any], pieces: dict[str, Any]) -> tuple[str, ...]:
    both = (whole, pieces)
    resident = (
        "-" if x["resident_bytes"] is None else megabytes(x["resident_bytes"]) for x in both
    )
    return (
        name,
        "; ".join(pieces["axes"]),
        str(pieces["pieces"]),
        *(megabytes(x["assigned_bytes"]) for x in both),
        *resident,
        *(f"{x[key]:.3f}" for key in ("seconds", "predicted_seconds") for x in both),
        *(f"{pieces[k] / whole[k]:.2f}" for k in ("seconds", "cpu_seconds", "predicted_seconds")),
    )
