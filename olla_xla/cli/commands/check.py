"""Guards the memory of one train step in CI: fails if it takes more than a baseline.

--baseline is a plan file (`olla_xla plan --plan_out=FILE`) or a file that `olla_xla analyze
--json=FILE` wrote. The step is compiled again, and planned again if the baseline is a plan. If its
total has grown by more than --tolerance, the tensors that differ are listed and the exit code is 1.
"""

from absl import flags

from olla_xla.analysis.difference import load_snapshot
from olla_xla.cli import document
from olla_xla.cli.commands import shared
from olla_xla.cli.flags import Flags
from olla_xla.cli.report.plans import difference_line, difference_table
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError
from olla_xla.tools.baseline import compare_with


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla check` in `values`."""
    define = Flags(values)
    shared.define_model(values)
    shared.define_target(values)
    define.text("baseline", None, "Plan or analysis file whose memory is the baseline.")
    define.text("tolerance", "0%", 'How far memory may exceed the baseline, such as "1%".')
    shared.define_largest(values, 10, "Number of differences to list.")
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Compares a step's total bytes with a baseline's; returns 1 if they grew beyond --tolerance.
    The differences are then printed, else the totals alone, and it returns 0. Raises InputError if
    a flag is missing or wrong, or the baseline file cannot be used.
    """
    options = shared.options(values)
    if values.model is None or values.baseline is None:
        raise InputError(
            "give --model=NAME and --baseline=FILE; olla_xla plan --plan_out=FILE and "
            "olla_xla analyze --json=FILE write such files"
        )
    tolerance = _share(values.tolerance)
    baseline = load_snapshot(values.baseline)
    if baseline is None:
        raise InputError(f"{values.baseline} is neither a plan file nor an analysis file")
    with Progress() as progress:
        model, target = shared.loaded_model(values, progress)
        change = compare_with(baseline, model, target, options, progress.stage)
    document.add(before_bytes=baseline.total_bytes, more_bytes=change.bytes, tolerance=tolerance)
    console = shared.console()
    console.print(difference_line(change), markup=False, soft_wrap=True)
    if change.bytes <= tolerance * baseline.total_bytes:
        return 0
    difference_table(change, values.largest).print(console)
    return 1


def _share(text: str) -> float:
    """Returns the fraction that a tolerance such as "1%" or "0.01" stands for: 0.01.
    Raises InputError if it is no number, or not at least 0 and below 1.
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise InputError(f"--tolerance={text} must be at least 0 and below 100%, such as 1%")
    return share
