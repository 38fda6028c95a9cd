"""Steps that run in pieces: the numbers of pieces that were tried, and what they need."""

from __future__ import annotations

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent
from olla_xla.pieces.in_pieces import FissionChoice


def fit_table(found: FissionChoice, title: str) -> Table:
    """One row for each number of pieces that was tried.

    A row has XLA's total, the plan's total ("-" if nothing was planned), and the predicted time
    that is added to that of the first trial.
    """
    whole = found.trials[0].xla_seconds
    rows = [
        (
            f"{trial.pieces:,}",
            megabytes(trial.xla_bytes),
            "-" if trial.planned_bytes is None else megabytes(trial.planned_bytes),
            f"{percent(trial.seconds / whole - 1, 1)} %",
            "chosen" if trial.pieces == found.pieces else "",
        )
        for trial in found.trials
    ]
    return Table(("pieces", "XLA, MB", "plan, MB", "added time", ""), rows, title)


def fit_verdict(found: FissionChoice, budget: int) -> str:
    """Which number of pieces meets a budget in bytes, and which regions are cut."""
    chosen = next(trial for trial in found.trials if trial.pieces == found.pieces)
    meets = f"{megabytes(chosen.planned_bytes or chosen.xla_bytes)} of {megabytes(budget)} MB"
    if found.plan is None:
        why = f" Nothing can be cut: {found.reason}." if found.reason else ""
        return f"The step as it is meets the budget: {meets}.{why}"
    regions = "\n".join(map(str, found.plan.regions))
    return f"In {found.pieces} pieces it meets the budget: {meets}.\n{regions}"
