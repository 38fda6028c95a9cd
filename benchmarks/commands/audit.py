"""Audits executables of plain jax.jit, and executables with a fault each.

Each step is compiled for --target, also an absent one, and audited. Then faults are put into the
executables, as many as --faults says. The exit code is 1 if an executable that XLA made has a
finding, or if a fault has none.
"""

from __future__ import annotations

import collections
import statistics
import sys
from collections.abc import Sequence

import jax
from absl import flags

from benchmarks.audit.faults import Case, drawn
from benchmarks.audit.rows import Row, audited, chosen
from benchmarks.driver import Flags, write_json
from benchmarks.thunks.faults import faults_table
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table
from olla_xla.errors import OllaError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.names(
        "steps",
        ["function:scan's gradient", "function:offloaded scan", "function:product"],
        "functions: JAX's own; function:NAME: one of them; libraries; a folder of dumps; "
        "else as of `benchmarks thunks`.",
    )
    define.one_of("target", "cpu", targets.TARGETS, "Device to compile for.")
    define.whole("faults", 40, "Faults, over all executables.", least=0)
    define.whole("seed", 0, "Of random programs and of faults.")
    define.out()
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Compiles, audits, and prints the tables."""
    files.check_writable(values.out)
    targets.prepare_environment(values.target)
    rows: list[Row] = []
    cases: list[Case] = []
    failed: list[str] = []
    with Progress() as progress:
        for step in chosen(values.steps, values.target, values.seed):
            progress.stage(step.name)
            try:
                row, report = audited(step, values.target)
            except (OllaError, RuntimeError, ValueError) as error:
                # XLA's own, and of programs with callbacks or memories that absent devices lack.
                failed.append(f"{step.name}: {str(error).partition(chr(10))[0]}")
                print(failed[-1], file=sys.stderr)
                continue
            finally:
                jax.clear_caches()  # executables pile up
            rows.append(row)
            if values.faults:
                cases.append(Case(step.name, report.parts))
            progress(f"{row.case}: {'; '.join(row.findings) or 'no findings'}")
        progress.stage("faults")
        faults = drawn(cases, values.faults, values.seed)
    write_json(values.out, {"rows": rows, "failed": failed, "faults": faults})
    shared.print_table(values, summary_table(rows, failed))
    if faults:
        shared.print_table(values, faults_table(faults))
    wrong = any(row.findings for row in rows)
    return int(wrong or any(not said for *_, said in faults))


def summary_table(rows: Sequence[Row], failed: Sequence[str]) -> Table:
    """Figures over all executables, and a line for each finding."""
    compiles, audits = (sum(getattr(r, f"{k}seconds") for r in rows) for k in ("compile_", ""))
    shares = [row.seconds / row.compile_seconds for row in rows if row.compile_seconds]
    lines = [
        ("executables", f"{len(rows):,}"),
        ("not compiled", f"{len(failed):,}"),
        ("with findings", f"{sum(bool(row.findings) for row in rows):,}"),
        ("compile, s", f"{compiles:.1f}"),
        ("audit, s", f"{audits:.1f}"),
        ("audit, part of the compile", f"{audits / compiles:.1%}" if compiles else "-"),
        ("median of these parts", f"{statistics.median(shares):.1%}" if shares else "-"),
        ("followed", _total(row.followed for row in rows)),
        ("on trust", _total(row.trusted for row in rows)),
        ("with doubts", f"{sum(bool(row.doubts) for row in rows):,}"),
    ]
    left = collections.Counter(line for row in rows for line in row.left)
    lines += [(f"not followed in {n:,}", line) for line, n in left.most_common()]
    lines += [(row.case, finding) for row in rows for finding in row.findings]
    return Table(headings=("all:", "together:"), rows=lines, title="executables of jax.jit")


def _total(counts) -> str:
    found: collections.Counter[str] = collections.Counter()
    for one in counts:
        found.update(one)
    return ", ".join(f"{n:,} {what}" for what, n in found.most_common())
