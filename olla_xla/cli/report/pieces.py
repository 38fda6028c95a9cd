"""Steps in pieces: what was tried under a budget, as a table."""

from __future__ import annotations

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent
from olla_xla.compile.in_pieces import FissionChoice

__all__ = ["fit_table", "fit_verdict"]


def fit_table(found: FissionChoice, title: str) -> Table:
    """A number of pieces a row: XLA's total and the plan's, and predicted time beside no pieces."""
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
    """What was chosen for a budget of so many bytes, and what is cut."""
    chosen = next(trial for trial in found.trials if trial.pieces == found.pieces)
    meets = f"{megabytes(chosen.planned_bytes or chosen.xla_bytes)} of {megabytes(budget)} MB"
    if found.plan is None:
        why = f" Nothing can be cut: {found.reason}." if found.reason else ""
        return f"The step as it is meets the budget: {meets}.{why}"
    regions = "\n".join(map(str, found.plan.regions))
    return f"In {found.pieces} pieces it meets the budget: {meets}.\n{regions}"
